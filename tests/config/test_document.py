"""The layer of the file: YAML, JSON within it, and references to the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.config.document import interpolate, read_document
from forwarder.config.layers import InvalidConfiguration, Layer
from forwarder.config.load import load_settings
from tests.support.cases import cases


def read(folder: Path, text: str, **environ: str) -> Layer:
    """The layer of a file that holds `text`."""
    file = folder / "forwarder.yaml"
    file.write_text(text, "utf-8")
    return read_document(file, environ)


def placed(layer: Layer) -> list[tuple[int, str]]:
    """Line and key of each problem."""
    return [(int(problem.where.rsplit(":", 1)[1]), problem.key) for problem in layer.problems]


@cases(
    "text",
    ["", "# nothing\n", "upstream:\nsources:\n  http:\n", "upstream: {url: null}\n", "log: ~"],
)
def test_nothing_said_is_nothing_set(tmp_path: Path, text: str) -> None:
    """An empty file, an empty section and an empty key leave the defaults."""
    assert read(tmp_path, text) == Layer()


def test_each_value_knows_its_line(tmp_path: Path) -> None:
    """Origins are file and line, for the items of lists too."""
    layer = read(
        tmp_path,
        (
            "batch:\n  max_events: 7\nsources:\n  http:\n    trusted_proxies:\n      - 10.0.0.1\n "
            "     - 10.0.0.2\n"
        ),
    )
    assert str(layer.values["batch", "max_events"].origin).endswith("forwarder.yaml:2")
    proxies = layer.values["sources", "http", "trusted_proxies"]
    assert (proxies.origin.line, [proxies.at(index).line for index in (0, 1, 2)]) == (5, [6, 7, 5])


def test_an_unknown_key_is_reported_with_its_line_and_a_proposal(tmp_path: Path) -> None:
    """A similar name beside it, or the same name elsewhere, is suggested."""
    layer = read(tmp_path, "upstream:\n  timout: 1s\n  listen: x\nkafka: []\nlog:\n  zzz: 1\n")
    assert placed(layer) == [
        (2, "upstream.timout"),
        (3, "upstream.listen"),
        (4, "kafka"),
        (6, "log.zzz"),
    ]
    hints = [problem.hint for problem in layer.problems]
    assert hints[0] == "did you mean upstream.timeout?"
    assert hints[1] == "did you mean sources.http.listen or admin.listen?"
    assert "known here: format, level" in hints[3]


@cases(
    "key",
    [
        "passthrough: {retries: 1}",
        "workers: {count: 1}",
        "upstream: {assets: x}",
        "buffer: {fsync: x}",
        "? [a]\n: b",
    ],
)
def test_keys_that_do_not_exist_are_refused(tmp_path: Path, key: str) -> None:
    """Only keys that do something are accepted."""
    assert len(read(tmp_path, key).problems) == 1


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    """YAML would silently take the last one."""
    assert placed(read(tmp_path, "log:\n  level: info\n  level: debug\n")) == [(3, "log.level")]
    assert placed(read(tmp_path, "log: {level: info}\nlog: {level: info}\n")) == [(2, "log")]


@cases("text", ["upstream: https://h\n", "sources: [1]\n", "just text\n", "- a\n"])
def test_a_section_needs_keys(tmp_path: Path, text: str) -> None:
    """A value where keys belong is reported, with an example of a key."""
    (problem,) = read(tmp_path, text).problems
    assert "needs keys" in problem.message
    assert ": …" in problem.hint or "{url: " in problem.hint


def test_a_value_is_no_mapping(tmp_path: Path) -> None:
    """A key takes one value or a list."""
    assert placed(read(tmp_path, "log:\n  level:\n    a: 1\n")) == [(3, "log.level")]


def test_references_are_replaced_with_their_line_in_errors(tmp_path: Path) -> None:
    """A missing variable is reported with file, line and key; an empty one leaves the default."""
    text = (
        "upstream:\n  url: ${URL}\n  proxy: ${PROXY}\n  ca_file: ${CA}\nsources: {http: "
        "{api_keys: ['${KEY}', b]}}\n"
    )
    layer = read(tmp_path, text, URL="https://h", PROXY="", KEY="a")
    assert layer.values["upstream", "url"].value == "https://h"
    assert ("upstream", "proxy") not in layer.values
    assert layer.values["sources", "http", "api_keys"].value == ["a", "b"]
    assert placed(layer) == [(4, "upstream.ca_file")]


@cases("value", ["!!python/name:os.system x", "!!bool maybe", "!!int x", "!own x", "[!!set {a}]"])
def test_tags_make_nothing_but_plain_values(tmp_path: Path, value: str) -> None:
    """A tag that YAML would make an object of is a problem of its key."""
    assert placed(read(tmp_path, f"log:\n  level: {value}\n")) == [(2, "log.level")]


@pytest.mark.parametrize("text", ["\U0001f4cf", "a\U0001f4cf\u00e9\U0001f600b"])
def test_json_may_escape_what_it_likes(tmp_path: Path, text: str) -> None:
    """Most encoders of JSON write a character beyond U+FFFF as a pair of escapes."""
    config = {"rules": [{"name": "unit", "set": {f'.properties["{text}"]': text}}]}
    escaped = json.dumps({**config, "upstream": {"url": "https://h.example.com"}})
    assert "\\ud83d" in escaped
    file = tmp_path / "forwarder.json"
    file.write_text(escaped)
    [rule] = load_settings(file, {}).settings.rules
    assert dict(rule.set) == {f'.properties["{text}"]': text}
    file.write_text(escaped.replace("\\ud83d", "\\ud83d "))
    with pytest.raises(InvalidConfiguration, match=r"half a character|no JSON"):
        load_settings(file, {})


def test_what_looks_like_a_date_is_text(tmp_path: Path) -> None:
    """YAML reads more into plain text than settings mean."""
    layer = read(tmp_path, "upstream: {ca_file: 2024-01-01, proxy: 2024-99-99}\nlog: 2024-99-99\n")
    assert [sourced.value for sourced in layer.values.values()] == ["2024-01-01", "2024-99-99"]
    assert placed(layer) == [(2, "log")]


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    """YAML's own ways of not repeating oneself are kept."""
    layer = read(
        tmp_path, "sources: {http: &h {max_body: 5MB}}\nupstream:\n  <<: *h\n  max_event: &m 1kB\n"
    )
    assert not layer.problems
    assert layer.values["upstream", "max_body"].value == "5MB"
    over = read(
        tmp_path, "sources: {http: &h {max_body: 5MB}}\nupstream:\n  <<: *h\n  max_body: 6MB\n"
    )
    assert not over.problems
    assert over.values["upstream", "max_body"].value == "6MB"


def test_a_list_that_contains_itself_is_refused(tmp_path: Path) -> None:
    """An alias can close a circle, which must not be walked indefinitely."""
    assert placed(read(tmp_path, "sources:\n  http:\n    api_keys: &a [*a]\n")) == [
        (3, "sources.http.api_keys")
    ]


@cases(
    ("data", "message"),
    [
        (b"a: [", "isn't YAML"),
        (b"listen: [::1]:8320", "isn't YAML"),
        (b"a: " + b"[" * 5000, "nested too deeply"),
        (b"a: *b", "isn't YAML"),
        (b"a: b\n---\nc: d", "isn't YAML"),
        (b"\xff\xfe", "UTF-8"),
        (b"a: \x00", "control characters"),
    ],
)
def test_invalid_yaml_is_reported(tmp_path: Path, data: bytes, message: str) -> None:
    """A file that can't be understood is one problem."""
    file = tmp_path / "forwarder.yaml"
    file.write_bytes(data)
    with pytest.raises(InvalidConfiguration, match=message):
        read_document(file, {})


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """A missing file and a folder are named."""
    for path in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(InvalidConfiguration, match=f"{path}: can't be read"):
            read_document(path, {})


@given(
    text=st.text(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                "log:",
                " level: ",
                "a",
                "[",
                "{",
                "}",
                "&a ",
                "*a",
                "\n",
                "  ",
                "- ",
                "${X}",
                "<<: ",
                "!!bool ",
                "!!int ",
                "2024-99-99",
                "? ",
            ]
        )
    ).map("".join)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_no_text_makes_anything_but_problems(tmp_path: Path, text: str) -> None:
    """Whatever stands in the file, the answer is a layer or a list of problems."""
    file = tmp_path / "forwarder.yaml"
    file.write_bytes(text.encode("utf-8", "replace"))
    try:
        problems = read_document(file, {}).problems
    except InvalidConfiguration as error:
        problems = list(error.problems)
    assert all(problem.where.startswith(str(file)) and problem.message for problem in problems)


ENVIRON = {"HOST": "h.example.com", "EMPTY": "", "TRICK": "${HOST}"}


@cases(
    ("text", "value"),
    [
        ("https://${HOST}/x", "https://h.example.com/x"),
        ("${HOST}${HOST}", "h.example.comh.example.com"),
        ("${NONE:-fallback}", "fallback"),
        ("${EMPTY:-fallback}", "fallback"),
        ("${NONE:-}", ""),
        ("${EMPTY}", ""),
        ("$${HOST}", "${HOST}"),
        ("$HOST $5 }", "$HOST $5 }"),
        ("${TRICK}", "${HOST}"),
    ],
)
def test_replaces_references(text: str, value: str) -> None:
    """Names become values, defaults stand in, and what a variable holds isn't looked into."""
    assert interpolate(text, ENVIRON) == value


@cases("text", ["${}", "${HOST", "${1X}", "${A:-${HOST}}", "${HOST:x}", "${ HOST }"])
def test_refuses_references_that_cannot_be_read(text: str) -> None:
    """A broken reference is an error, never passed on as text."""
    with pytest.raises(ValueError, match=r"\$\{VAR\}"):
        interpolate(text, ENVIRON)


def test_names_the_variable_that_is_missing() -> None:
    """Without a default, a variable that isn't there is an error."""
    with pytest.raises(ValueError, match="no MISSING: set it"):
        interpolate("${MISSING}", ENVIRON)


@given(st.text().filter(lambda text: "${" not in text))
def test_leaves_everything_else_alone(text: str) -> None:
    """Text without a reference is kept as it is."""
    assert interpolate(text, {}) == text
