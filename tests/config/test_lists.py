"""Lists of sections, in the file and in the environment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.config.layers import InvalidConfiguration, Problem
from forwarder.config.load import Loaded, load_settings
from tests.support.cases import cases

SECOND = "sources.kafka[1]"
LIST = "FORWARDER_SOURCES__KAFKA"
TWO = """
sources:
  kafka:
    - name: one
      bootstrap_servers: [a:9092]
      topics: [x]
    - name: two
      bootstrap_servers: b:9092
      topics: [y, z]
"""


def load(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> Loaded:
    """What a file that holds `text` and an environment make."""
    file = folder / "forwarder.yaml"
    file.write_text(text, "utf-8")
    return load_settings(file, environ or {}, require_upstream=False)


def problems(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> list[str]:
    """Each problem, without the folder of the file."""
    with pytest.raises(InvalidConfiguration) as caught:
        load(folder, text, environ)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


def names(loaded: Loaded) -> list[tuple[str, tuple[str, ...]]]:
    """Name and topics of each cluster."""
    return [(cluster.name, cluster.topics) for cluster in loaded.settings.sources.kafka]


def test_items_are_read_in_their_order(tmp_path: Path) -> None:
    """Each item is a section; what it doesn't say has its default."""
    loaded = load(tmp_path, TWO)
    assert names(loaded) == [("one", ("x",)), ("two", ("y", "z"))]
    assert [cluster.group_id for cluster in loaded.settings.sources.kafka] == [
        "forwarder",
        "forwarder",
    ]


@cases("text", ["sources: {kafka: }", "sources: {kafka: []}", "sources: {kafka: '${NONE:-}'}"])
def test_a_list_may_be_empty(tmp_path: Path, text: str) -> None:
    """No items, or nothing at all, is the default."""
    assert load(tmp_path, text).settings.sources.kafka == ()


@cases(
    ("item", "line", "message"),
    [
        (
            "topik: [x]",
            4,
            "sources.kafka[1].topik: unknown setting\n    did you mean sources.kafka[1].topics?",
        ),
        (
            "topics: x\n      topics: y",
            5,
            "sources.kafka[1].topics: is given twice, first in line 4\n    keep one of the two",
        ),
        (
            "security:\n        protokol: SSL",
            5,
            (
                f"{SECOND}.security.protokol: unknown setting\n    did you mean "
                f"{SECOND}.security.protocol?"
            ),
        ),
        ("commit: sometimes", 4, "sources.kafka[1].commit: must be 'delivered' or 'disk'"),
        (
            "topics:\n        - x\n        - a b",
            6,
            "sources.kafka[1].topics[1]: 'a b' can't be a name of Kafka's",
        ),
        ("max_uncommitted: many", 4, "sources.kafka[1].max_uncommitted: 'many' can't be used"),
        ("topics: '${NONE}'", 4, "sources.kafka[1].topics: the environment has no NONE"),
        (
            "mapping: {timestamp: [x]}",
            4,
            (
                "sources.kafka[1].mapping.timestamp: is a section, and needs keys below it\n    "
                "such as from: …"
            ),
        ),
        (
            "mapping:\n        set:\n          a: 1",
            6,
            "sources.kafka[1].mapping.set.a: it isn't text",
        ),
        (
            "mapping:\n        set:\n          a: {b: c}",
            6,
            "sources.kafka[1].mapping.set.a: it is a mapping",
        ),
        (
            "mapping:\n        set:\n          a: '${NONE}'",
            6,
            "sources.kafka[1].mapping.set.a: the environment has no NONE",
        ),
        (
            "mapping:\n        set:\n          a: b\n          a: c",
            7,
            "sources.kafka[1].mapping.set.a: is given twice",
        ),
        ("mapping:\n        set: [a]", 5, "sources.kafka[1].mapping.set: it is a list"),
        ("topics: x", 4, "sources.kafka[1].bootstrap_servers: is missing"),
        (
            "just text",
            4,
            "sources.kafka[1]: is a section, and needs keys below it\n    such as name: …",
        ),
        ("[x]", 4, "sources.kafka[1]: is a section"),
    ],
)
def test_an_error_in_an_item_is_reported_with_its_line(
    tmp_path: Path, item: str, line: int, message: str
) -> None:
    """Each problem names the item by its number, and the line; a key that is missing has the line
    of its item.
    """
    text = f"sources:\n  kafka:\n    - {{bootstrap_servers: 'a:1', topics: x}}\n    - {item}\n"
    assert any(
        problem.startswith(f"forwarder.yaml:{line}: {message}")
        for problem in problems(tmp_path, text)
    )


@cases("written", ["{name: a}", "5", "true", "just text"])
def test_a_list_needs_dashes(tmp_path: Path, written: str) -> None:
    """A single section, or a value, instead of the list is reported where it stands."""
    (problem,) = problems(tmp_path, f"sources:\n  kafka: {written}\n")
    assert problem.startswith("forwarder.yaml:2: sources.kafka: ")


def test_a_key_that_is_missing_stands_where_its_item_does(tmp_path: Path) -> None:
    """In the file, also if variables say something of the item; in the variable of the list;
    nowhere, if variables make the item.
    """
    single = {f"{LIST}__0__GROUP_ID": "g", f"{LIST}__0__TOPICS": "x"}
    missing = "sources.kafka[0].bootstrap_servers: is missing: where"
    assert problems(tmp_path, "sources:\n  kafka:\n    - name: a", single)[0].startswith(
        f"forwarder.yaml:3: {missing}"
    )
    assert problems(tmp_path, "", {LIST: "[{}]", **single})[0].startswith(f"{LIST}: {missing}")
    assert problems(tmp_path, "", single)[0].startswith(missing)


def test_items_may_share_what_an_anchor_names(tmp_path: Path) -> None:
    """YAML's own ways of not repeating oneself work between items."""
    text = (
        "sources:\n  kafka:\n    - &a {name: one, bootstrap_servers: 'h:1', topics: x}\n    - "
        "{<<: *a, name: two, topics: y}\n"
    )
    assert names(load(tmp_path, text)) == [("one", ("x",)), ("two", ("y",))]


def test_what_merges_may_be_named_again(tmp_path: Path) -> None:
    """A mapping that stands over another is the same each time that it is named; the first of
    several that are merged is the strongest.
    """
    text = """
        sources:
          kafka:
            - &a {name: a, bootstrap_servers: 'h:1', topics: x, security: &s {protocol: SSL}}
            - &b {<<: *a, name: b, security: &t {<<: *s, protocol: PLAINTEXT}}
            - {<<: *b, name: c, security: *t}
            - {<<: [{topics: z}, *b, *a], name: d}
            - {<<: *b, name: e}
    """
    loaded = load(tmp_path, text)
    assert names(loaded) == [
        ("a", ("x",)),
        ("b", ("x",)),
        ("c", ("x",)),
        ("d", ("z",)),
        ("e", ("x",)),
    ]
    assert [cluster.security.protocol for cluster in loaded.settings.sources.kafka] == [
        "SSL",
        *["PLAINTEXT"] * 4,
    ]
    assert "<< takes a section" in problems(tmp_path, "sources: {kafka: [{<<: 5}]}")[0]


def test_rule_sets_any_json_value(tmp_path: Path) -> None:
    """As the file says it: objects, arrays and null too, and what a variable gives. A variable
    that is empty sets nothing.
    """
    text = """
        rules:
          - set:
              .properties.object: {a: 1, b: {c: [true, null]}}
              .properties.list: [1, {d: x}]
              .properties.nothing: null
              .properties.plan: '${PLAN}'
              .properties.empty: '${EMPTY}'
          - set: {.properties.only: null}
    """
    rules = load(tmp_path, text, {"PLAN": "pro", "EMPTY": ""}).settings.rules
    assert [rule.set for rule in rules] == [
        {
            ".properties.object": {"a": 1, "b": {"c": [True, None]}},
            ".properties.list": [1, {"d": "x"}],
            ".properties.nothing": None,
            ".properties.plan": "pro",
        },
        {".properties.only": None},
    ]


def test_a_list_that_contains_itself_is_refused(tmp_path: Path) -> None:
    """An alias can close a circle, which must not be walked indefinitely."""
    assert problems(tmp_path, "sources: {kafka: &a [*a]}")
    for mapping in ("&a {set: *a}", "{set: &a {b: *a}}", "{set: &a {<<: *a}}"):
        assert problems(tmp_path, f"sources: {{kafka: [{{mapping: {mapping}}}]}}")


def test_a_variable_sets_one_key_of_an_item(tmp_path: Path) -> None:
    """It goes over the file's, and leaves the item's other keys; keys of sections
    and lists work likewise.
    """
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    environ = {
        f"{LIST}__1__NAME": "second",
        f"{LIST}__0__TOPICS": "p,q",
        f"{LIST}__0__FORMAT": "json",
        f"{LIST}__0__API_KEY": "phc_a",
        f"{LIST}__0__MAPPING__EVENT": ".type",
        f"{LIST}__0__MAPPING__TIMESTAMP": ".at",
        f"{LIST}__0__MAPPING__PROPERTIES": "{plan: .p}",
        f"{LIST}__0__SECURITY__PROTOCOL": "sasl_plaintext",
        f"{LIST}__0__SECURITY__MECHANISM": "plain",
        f"{LIST}__0__SECURITY__USERNAME": "u",
        f"{LIST}__0__SECURITY__PASSWORD_FILE": str(secret),
    }
    loaded = load(tmp_path, TWO, environ)
    assert names(loaded) == [("one", ("p", "q")), ("second", ("y", "z"))]
    mapping = loaded.settings.sources.kafka[0].mapping
    security = loaded.settings.sources.kafka[0].security
    assert (mapping.event, mapping.timestamp.source, mapping.properties) == (
        ".type",
        ".at",
        "{plan: .p}",
    )
    assert (security.protocol, security.mechanism, security.password_file) == (
        "SASL_PLAINTEXT",
        "PLAIN",
        secret,
    )


def test_variables_make_items_by_themselves(tmp_path: Path) -> None:
    """Without a file, or after the file's last item."""
    environ = {f"{LIST}__0__TOPICS": "x", f"{LIST}__0__BOOTSTRAP_SERVERS": "h:1"}
    assert names(load(tmp_path, "", environ)) == [("kafka", ("x",))]
    environ = {name.replace("__0__", "__2__"): value for name, value in environ.items()}
    assert names(load(tmp_path, TWO, environ)) == [
        ("one", ("x",)),
        ("two", ("y", "z")),
        ("kafka", ("x",)),
    ]


def test_ten_items_keep_their_order(tmp_path: Path) -> None:
    """Numbers are numbers: the tenth comes after the ninth, whatever the order of the variables."""
    environ = {
        f"{LIST}__{number}__{key}": f"n{number}{port}"
        for number in range(11)
        for key, port in KEYS.items()
    }
    assert [name for name, _ in names(load(tmp_path, "", dict(reversed(environ.items()))))] == [
        f"n{number}" for number in range(11)
    ]


KEYS = {"NAME": "", "TOPICS": "", "BOOTSTRAP_SERVERS": ":1"}


@cases(("text", "missing"), [("", 0), (TWO, 2), ("sources: {kafka: []}", 0)])
def test_a_gap_in_the_numbers_is_an_error(tmp_path: Path, text: str, missing: int) -> None:
    """An item that no one meant would be empty, and the others would be counted otherwise than
    they are called.
    """
    environ = {f"{LIST}__{missing + 1}__TOPICS": "a b", f"{LIST}__{missing + 5}__NAME": "x"}
    (problem,) = problems(tmp_path, text, environ)
    name = f"sources.kafka[{missing + 1}]"
    assert problem == (
        f"{LIST}__{missing + 1}__TOPICS: {name}: there is no sources.kafka[{missing}]\n    "
        "number the items from 0, without a gap"
    )


def test_an_empty_variable_makes_no_item(tmp_path: Path) -> None:
    """Compose files pass on variables that no one set as empty ones."""
    assert load(tmp_path, "", {LIST: " ", f"{LIST}__3__TOPICS": ""}).settings.sources.kafka == ()


def test_the_whole_list_can_be_json(tmp_path: Path) -> None:
    """In a variable it replaces the file's, with single keys over it; the file can refer
    to a variable that holds it.
    """
    written = json.dumps(
        [
            {
                "name": "j",
                "bootstrap_servers": ["h:1"],
                "topics": ["t", "u"],
                "max_uncommitted": 7,
                "halt_after": None,
            }
        ]
    )
    environ = {LIST: written}
    loaded = load(tmp_path, TWO, environ)
    assert names(loaded) == [("j", ("t", "u"))]
    assert (
        loaded.settings.sources.kafka[0].max_uncommitted,
        loaded.settings.sources.kafka[0].halt_after,
    ) == (7, 3600)
    assert names(load(tmp_path, TWO, {f"{LIST}__0__TOPICS": "v", **environ})) == [("j", ("v",))]
    assert names(load(tmp_path, "sources: {kafka: '${CLUSTERS}'}", {"CLUSTERS": written})) == [
        ("j", ("t", "u"))
    ]
    assert load(tmp_path, TWO, {LIST: "[]"}).settings.sources.kafka == ()


@cases(
    ("written", "message"),
    [
        ("kafka-1:9092", "sources.kafka: it isn't JSON (Expecting value at character 0)"),
        ('{"name": "a"}', "sources.kafka: it is JSON, but no list"),
        ("7", "sources.kafka: it is JSON, but no list"),
        ('["a"]', "sources.kafka[0]: is a section"),
        (
            '[{"nam": "a"}]',
            "sources.kafka[0].nam: unknown setting\n    did you mean sources.kafka[0].name?",
        ),
        ('[{}, {"name": "a", "name": "b"}]', "sources.kafka[1].name: is given twice"),
        (
            '[{"security": {"protocol": "TLS"}}]',
            "sources.kafka[0].security.protocol: must be 'PLAINTEXT'",
        ),
        ('[{"security": {"password": 5}}]', "sources.kafka[0].security.password: it isn't text"),
        ('[{"max_uncommitted": 1e999}]', "sources.kafka[0].max_uncommitted: inf can't be used"),
        ("[" * 100_000, "sources.kafka: it is nested too deeply"),
    ],
)
def test_json_that_cannot_be_used_is_reported(tmp_path: Path, written: str, message: str) -> None:
    """As in a file, with the variable instead of the line; through a reference with the line
    that refers to it.
    """
    assert any(
        problem.startswith(f"{LIST}: {message}")
        for problem in problems(tmp_path, "", {LIST: written})
    )
    referred = problems(tmp_path, "\nsources: {kafka: '${X}'}", {"X": written})
    assert any(problem.startswith(f"forwarder.yaml:2: {message}") for problem in referred)


def test_what_a_variable_holds_is_not_looked_into(tmp_path: Path) -> None:
    """References stand in the file, not in the environment."""
    foreign = {"format": "json", "api_key": "phc_a", "mapping": {"event": "${X}"}}
    written = json.dumps(
        [{"bootstrap_servers": "h:1", "topics": "t", "group_id": "$${X}", **foreign}]
    )
    for loaded in (
        load(tmp_path, "", {LIST: written}),
        load(tmp_path, "sources: {kafka: '${C}'}", {"C": written}),
    ):
        assert loaded.settings.sources.kafka[0].mapping.event == "${X}"
        assert loaded.settings.sources.kafka[0].group_id == "$${X}"


def test_names_that_the_user_chose_are_kept(tmp_path: Path) -> None:
    """Whatever they look like, in their order; a name without a value isn't set; references in
    values are replaced.
    """
    text = """
        sources:
          kafka:
            - {bootstrap_servers: 'h:1', topics: x, format: json, api_key: phc_a, mapping: \
{event: .e, properties: {
                 Plan Name: .plan, '0': .zero, a.b: '${PATH_OF_B}', none: , $ip: .ip}}}
    """
    properties = (
        load(tmp_path, text, {"PATH_OF_B": ".b"}).settings.sources.kafka[0].mapping.properties
    )
    assert isinstance(properties, dict)
    assert [*properties.items()] == [
        ("Plan Name", ".plan"),
        ("0", ".zero"),
        ("a.b", ".b"),
        ("$ip", ".ip"),
    ]


def test_a_section_may_be_written_short(tmp_path: Path) -> None:
    """Text instead of a timestamp is its expression; the environment can change
    it either way.
    """
    item = (
        "{bootstrap_servers: 'h:1', topics: x, format: json, api_key: phc_a, mapping: {event: "
        ".e, timestamp: .at}}"
    )
    for environ, source in (
        ({}, ".at"),
        ({"": ".b"}, ".b"),
        ({"__FROM": ".c"}, ".c"),
        ({"__ZONE": "UTC"}, ".at"),
    ):
        named = {f"{LIST}__0__MAPPING__TIMESTAMP{name}": value for name, value in environ.items()}
        assert (
            load(tmp_path, f"sources: {{kafka: [{item}]}}", named)
            .settings.sources.kafka[0]
            .mapping.timestamp.source
            == source
        )


def test_what_belongs_to_a_short_section_may_stand_beside_it(tmp_path: Path) -> None:
    """As `archive: URL, partition: hour`; where the section is written out, it is unknown there."""
    text = (
        "buffer: {kind: disk, path: /srv/b}\nupstreams: {own: {archive: 'file:///srv/e', "
        "partition: hour, max_age: 1m}}"
    )
    archive = load(tmp_path, text).settings.upstreams[0].archive
    assert (archive.url, archive.partition, archive.max_age) == ("file:///srv/e", "hour", 60.0)
    reported = problems(
        tmp_path, "upstreams: {own: {archive: {url: 'file:///srv/e'}, partition: hour}}"
    )
    assert any("upstreams[0].partition: unknown setting" in problem for problem in reported)


def test_a_project_key_comes_from_a_file(tmp_path: Path) -> None:
    """One key, and only one."""
    secret = tmp_path / "key"
    item = f"{{bootstrap_servers: 'h:1', topics: x, api_key_file: {secret}}}"
    secret.write_text("# ours\nphc_first\n")
    assert (
        load(tmp_path, f"sources: {{kafka: [{item}]}}").settings.sources.kafka[0].api_key
        == "phc_first"
    )
    for content, message in (
        ("phc_a\nphc_b", "holds 2 keys"),
        ("phx_hunter2hunter2", "line 1: it is a personal key"),
        ("", "no key"),
    ):
        secret.write_text(content)
        (problem,) = problems(tmp_path, f"sources: {{kafka: [{item}]}}")
        assert problem.startswith("forwarder.yaml:1: sources.kafka[0].api_key_file: ")
        assert message in problem
        assert "hunter2" not in problem


@cases(
    ("key", "value", "message"),
    [
        ("name", "a b", "use letters, digits"),
        ("name", "''", "use letters, digits"),
        ("bootstrap_servers", "kafka", "write host:port"),
        ("bootstrap_servers", "'kafka:0'", "write one from 1 to 65535"),
        ("bootstrap_servers", "'SASL_SSL://kafka:9092'", "leave out what stands before ://"),
        ("topics", "'..'", "can't be a name of Kafka's"),
        ("topics_pattern", "'('", "is no regular expression"),
        ("topics_pattern", "'(?!__).*'", "has a negative lookahead, (?!…), which isn't available"),
        ("topics_pattern", "''", "at least 1 character"),
        ("group_id", "''", "at least 1 character"),
        ("group_id", "7", "put it in quotes"),
        ("group_instance_id", "'a/b'", "can't be a name of Kafka's"),
        ("auto_offset_reset", "newest", "must be 'earliest' or 'latest'"),
        ("format", "avro", "must be 'events' or 'json'"),
        ("api_key", "phx_hunter2hunter2", "personal key"),
        ("key_is_distinct_id", "maybe", "boolean"),
        ("commit_interval", "0s", "from 100ms"),
        ("max_in_flight", "1", "from 1kB"),
        ("max_uncommitted", "0", "from 1"),
        ("session_timeout", "10", "no unit of time"),
        ("halt_after", "0s", "or never"),
        ("missing_topics", "skip", "must be 'wait' or 'fail'"),
        ("isolation_level", "serializable", "must be 'read_committed' or 'read_uncommitted'"),
        ("security", "{mechanism: GSSAPI}", "must be 'PLAIN', 'SCRAM-SHA-256'"),
        ("bootstrap_servers", "u:hunter2hunter2@h:9092", "security.password_file"),
        ("security", "{token_url: login.example.com}", "https://login.example.com/oauth2/token"),
        (
            "security",
            "{token_url: 'https://u:hunter2hunter2@login.example.com'}",
            "client_secret_file",
        ),
        ("fetch_max_wait", "1m", "from 1ms to 30s"),
        ("security", "{password: 0012345}", "it isn't text"),
        ("mapping", "{event: ''}", "at least 1 character"),
        ("mapping", "{event: true}", "put it in quotes"),
        ("mapping", "{hash: {field: [1]}}", "put it in quotes"),
    ],
)
def test_a_value_that_cannot_be_used_says_how_to_write_it(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    """The problem names its line, its key and what to write, and never shows a secret."""
    reported = [
        problem
        for problem in problems(tmp_path, f"sources:\n  kafka:\n    - {key}: {value}\n")
        if message in problem
    ]
    assert reported
    assert reported[0].startswith(f"forwarder.yaml:3: sources.kafka[0].{key}")
    assert "hunter2hunter2" not in str(reported)
    assert "12345" not in str(reported)


@cases(
    ("key", "message"),
    [
        (r"pattern: '\b(?P<a>\w+)'", r"pattern: '\\b(?P<a>\\w+)' has \b, which isn't available"),
        ("pattern: '(?P<a>.++)'", "has a possessive repeat, ++, *+ or ?+, which isn't available"),
        (r"multiline: {start: '^(?!\s)'}", "exclude characters by a class"),
        ("multiline: {start: '(?u)a'}", "cannot use 'u' flag with a bytes pattern"),
    ],
)
def test_a_pattern_that_may_take_long_says_what_to_write(
    tmp_path: Path, key: str, message: str
) -> None:
    """The problem names its line, its key, what isn't available and what to write instead."""
    reported = problems(tmp_path, f"sources:\n  logs:\n    - {key}\n")
    assert any(
        problem.startswith("forwarder.yaml:3: sources.logs[0].") and message in problem
        for problem in reported
    ), reported


VALUES: Mapping[str, list[Any]] = {
    "name": ["a", "b"],
    "topics": [["x"], ["x", "y"]],
    "group_id": ["g", "h"],
    "max_uncommitted": [1, 2],
    "key_is_distinct_id": [True, False],
}
items = st.fixed_dictionaries(
    {}, optional={key: st.sampled_from(values) for key, values in VALUES.items()}
)


def in_environment(value: Any) -> str:
    """A value as a variable holds it."""
    return ",".join(value) if isinstance(value, list) else str(value)


@given(
    in_file=st.lists(items, max_size=4),
    whole=st.none() | st.lists(items, max_size=4),
    single=st.lists(items, max_size=4),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
def test_single_keys_go_over_the_whole_list_over_the_file(
    tmp_path: Path,
    in_file: list[dict[str, Any]],
    whole: list[dict[str, Any]] | None,
    single: list[dict[str, Any]],
) -> None:
    """Whatever is said where, each item has of each key what the strongest place says, and the
    default if none does.
    """
    base = in_file if whole is None else whole
    said = [
        {
            **(base[number] if number < len(base) else {}),
            **(single[number] if number < len(single) else {}),
        }
        for number in range(4)
    ]
    there = [
        number
        for number in range(4)
        if number < len(base) or (number < len(single) and single[number])
    ]
    environ = {
        f"{LIST}__{number}__{key.upper()}": in_environment(value)
        for number, item in enumerate(single)
        for key, value in item.items()
    }
    environ |= {} if whole is None else {LIST: json.dumps(whole)}
    file = tmp_path / "forwarder.yaml"
    file.write_text(json.dumps({"sources": {"kafka": in_file}}, indent=1))
    try:
        clusters = [
            cluster.as_document()
            for cluster in load_settings(
                file, environ, require_upstream=False
            ).settings.sources.kafka
        ]
    except InvalidConfiguration as error:
        clusters = []
        text = str(error)
        assert ("there is no sources.kafka" in text) == (there != list(range(len(there)))), text
        assert "bootstrap_servers: is missing" in text or there[:1] != [0]
    else:
        assert there == []
    assert all({**item, **said[number]} == item for number, item in enumerate(clusters))


@given(
    text=st.lists(
        st.sampled_from(
            [
                "\n",
                "  ",
                "    ",
                "- ",
                "name: ",
                "mapping:",
                "set:",
                "a: b",
                "[",
                "]",
                "{",
                "}",
                "&a ",
                "*a",
                "<<: ",
            ]
        )
    ).map("".join),
    variable=st.text(max_size=20)
    | st.lists(st.sampled_from(["[", "]", "{", "}", '"name"', ":", ",", "1", '"a"', "null"])).map(
        "".join
    ),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None
)
def test_no_text_makes_anything_but_settings_or_problems(
    tmp_path: Path, text: str, variable: str
) -> None:
    """Whatever stands in the file or in the variable of the list."""
    file = tmp_path / "forwarder.yaml"
    file.write_bytes(f"sources:\n  kafka:\n{text}".encode())
    reported: tuple[Problem, ...] = ()
    try:
        load_settings(file, {LIST: variable}, require_upstream=False)
    except InvalidConfiguration as error:
        reported = error.problems
    assert all(problem.message and problem.where for problem in reported)


def test_logs_are_written_as_clusters_are(tmp_path: Path) -> None:
    """Items in the file, single keys of them in the environment; the project
    key may come from a file.
    """
    secret = tmp_path / "key"
    secret.write_text("phc_abcdefghij")
    file = tmp_path / "forwarder.yaml"
    file.write_text(
        f"sources:\n  logs:\n    - {{path: a.log, mapping: {{event: .e, distinct_id: .u}}, "
        f"api_key_file: {secret}}}\n"
    )
    environ = {
        "FORWARDER_SOURCES__LOGS__0__PATH": "/var/log/a.log, /var/log/b/**",
        "FORWARDER_SOURCES__LOGS__0__ROTATE_WAIT": "5m",
    }
    (source,) = load_settings(file, environ, require_upstream=False).settings.sources.logs
    assert (source.path, source.rotate_wait, source.api_key) == (
        ("/var/log/a.log", "/var/log/b/**"),
        300.0,
        "phc_abcdefghij",
    )


def test_the_project_key_of_otlp_may_come_from_a_file(tmp_path: Path) -> None:
    """As that of other sources."""
    secret = tmp_path / "key"
    secret.write_text("phc_abcdefghij")
    otlp = f"{{mapping: {{event: .e, distinct_id: .u}}, api_key_file: {secret}}}"
    file = tmp_path / "forwarder.yaml"
    file.write_text(f"sources:\n  http:\n    otlp: {otlp}\n")
    assert (
        load_settings(file, {}, require_upstream=False).settings.sources.http.otlp.api_key
        == "phc_abcdefghij"
    )
