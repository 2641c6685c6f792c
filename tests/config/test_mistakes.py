"""The first mistakes of a configuration's author: each is reported with its line, its key, and how
to write what was meant.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from forwarder.config.layers import InvalidConfiguration
from forwarder.config.load import load_settings
from tests.support.cases import cases

URL = "upstream: {url: https://h.example.com}\n"


def problems(folder: Path, text: str | bytes, **environ: str) -> list[str]:
    """Each problem, beginning with the line of the file if it has one."""
    file = folder / "forwarder.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(file, environ)
    return [
        str(problem).replace(f"{file}:", "").replace(str(file), "FILE")
        for problem in caught.value.problems
    ]


@cases(
    ("listen", "hint"),
    [
        (
            "8320",
            (
                "as it names no host\n    write 127.0.0.1:8320 for this machine alone, or "
                "0.0.0.0:8320 for all interfaces"
            ),
        ),
        ("'8320'", "write 127.0.0.1:8320"),
        ("':8320'", "write 127.0.0.1:8320"),
        ("'*:8320'", "write 127.0.0.1:8320"),
        ("localhost", "as it names no port\n    write it as localhost:8320"),
        ("127.0.0.1", "write it as 127.0.0.1:8320"),
        ("'http://0.0.0.0:8320/'", "but a URL\n    write 0.0.0.0:8320 alone"),
        ("127.0.0.1:8320/", "write 127.0.0.1:8320 without the slash"),
        ("/run/forwarder.sock", "but a path\n    write unix:/run/forwarder.sock"),
        ("'::1:8320'", "write an IPv6 address in brackets and quotes, '[::1]:8320'"),
        ("unix:forwarder.sock", "must be absolute\n    write unix:/run/forwarder/forwarder.sock"),
        ("[127.0.0.1, 8320]", "it is a list, and this key takes one value"),
        (
            "yes",
            "YAML reads it as a boolean (as it does yes, no, on and off)\n    put it in quotes",
        ),
    ],
)
def test_an_address_to_listen_on(tmp_path: Path, listen: str, hint: str) -> None:
    """What people write instead of host:port is recognized, and the answer has what they meant."""
    (problem,) = problems(tmp_path, f"{URL}sources:\n  http:\n    listen: {listen}\n")
    assert problem.startswith("4: sources.http.listen: ")
    assert hint in problem


@cases(
    ("key", "value", "hint"),
    [
        ("batch.max_bytes", "5 megabytes", "write 5MB (powers of 1000) or 5MiB (of 1024)"),
        ("batch.max_bytes", "512K", "write 512kB (powers of 1000) or 512KiB (of 1024)"),
        ("batch.max_bytes", "100000 bytes", "write 100000 for bytes"),
        ("batch.max_bytes", "5 parsecs", "use one of B, kB, KiB, MB"),
        ("batch.max_bytes", "'1,5MB'", "is not a size, as it holds a comma"),
        ("batch.max_age", "30sec", "write 30s"),
        ("batch.max_age", "2 minutes", "write 2m"),
        ("batch.max_age", "200 msec", "write 200ms"),
        ("batch.max_age", "1 week", "write 7d"),
        ("batch.max_age", "3 fortnights", "use one of ms, s, m, h, d"),
        ("batch.max_age", "1m30s", "write one number with its unit"),
        ("batch.max_age", "'0,5s'", "is not a time, as it holds a comma"),
        ("batch.max_age", "5", "write 5s for seconds or 5ms for milliseconds"),
        (
            "batch.max_events",
            "'5,000'",
            "write a whole number from 1 to 1000000 without separators",
        ),
        ("upstream.verify_keys", "enabled", "'enabled' is not a boolean\n    write true or false"),
        (
            "upstream.compression",
            "no",
            "YAML reads yes, no, on and off as booleans, so put a word in quotes",
        ),
        ("upstream.compression", "GZIP", "must be 'gzip' or 'none'\n    write gzip"),
        ("buffer.when_full", "Drop-Newest", "write drop_newest"),
        ("log.level", "INFO", "write info"),
        ("log.level", "$LEVEL", "write ${LEVEL} for a variable's value"),
        (
            "log.level",
            "${LEVEL}",
            "the environment has no LEVEL\n    set it, or write ${LEVEL:-default}",
        ),
        (
            "buffer.path",
            "~/state",
            "begins with ~, which only a shell expands\n    write the whole path",
        ),
        (
            "buffer.path",
            "|\n      /run/secrets/key\n",
            "'/run/secrets/key\\n' has a control character in it\n    write the path in one line",
        ),
        ("upstream.assets_url", "assets.example.com", "write it as https://assets.example.com"),
        ("upstream.assets_url", "user:hunter2@h", "write it as https://us.i.example.com"),
        (
            "sources.http.api_keys",
            "[phx_hunter2hunter2]",
            "it is a personal key, which must not be here\n    use the project's key",
        ),
        (
            "sources.http.trusted_proxies",
            "{a: b}",
            "it is a mapping\n    this key takes a single value or a list",
        ),
        ("sources.logs", "/var/log/app.log", "is a list\n    begin each item with a dash"),
        ("sources.logs", "{path: /var/log/app.log}", "is a list\n    begin each item with a dash"),
    ],
)
def test_a_value(tmp_path: Path, key: str, value: str, hint: str) -> None:
    """A size, a time, a number, a boolean, a word, a variable, a path, a key, a list: each answer
    has the form that was meant.
    """
    *sections, name = key.split(".")
    opened = "".join(f"{'  ' * depth}{section}:\n" for depth, section in enumerate(sections))
    text = f"{opened}{'  ' * len(sections)}{name}: {value}\n"
    (problem,) = problems(tmp_path, text, FORWARDER_UPSTREAM__URL="https://h.example.com")
    assert problem.startswith(f"{len(sections) + 1}: {key}")
    assert hint in problem
    assert "hunter2" not in problem


@cases(
    ("text", "expected"),
    [
        (
            "upstream: https://us.i.example.com",
            [
                (
                    "1: upstream: is a section, and needs keys below it\n    write it as "
                    "upstream: {url: https"
                )
            ],
        ),
        (
            "upstream:\n  url:https://h",
            [
                (
                    "2: upstream: is a section, and needs keys below it\n    put a blank after "
                    "the colon: url: …"
                )
            ],
        ),
        (
            f"{URL}buffer: disk",
            [
                (
                    "2: buffer: is a section, and needs keys below it\n    write it as buffer: "
                    "{kind: disk}"
                )
            ],
        ),
        (
            f"{URL}log: debug",
            ["2: log: is a section, and needs keys below it\n    write it as log: {level: debug}"],
        ),
        (
            f"{URL}admin: 127.0.0.1:9",
            [
                (
                    "2: admin: is a section, and needs keys below it\n    write it as admin: "
                    "{listen: 127.0.0.1:9}"
                )
            ],
        ),
        ("FORWARDER_UPSTREAM__URL=https://h", ["1: holds environment variables, and no YAML"]),
        ("- upstream", ["1: holds no keys"]),
        (
            "upstream.url: https://h",
            ["1: upstream.url: unknown setting\n    write it below upstream: {url: …}"],
        ),
        (
            "Upstream:\n  URL: https://h",
            [
                "1: Upstream: unknown setting\n    did you mean upstream?",
                "2: upstream.URL: unknown setting",
            ],
        ),
        (
            f"{URL}batch:\n  maxEvents: 0",
            ["3: batch.maxEvents: unknown setting", "3: batch.max_events: 0 can't be used"],
        ),
        (
            f"{URL}batch:\n  max-age: 3",
            ["3: batch.max-age: unknown setting", "3: batch.max_age: 3 has no unit of time"],
        ),
        (
            f"{URL}log: {{}}\n{URL}",
            ["3: upstream: is given twice, first in line 1\n    keep one of the two"],
        ),
        (
            "",
            [
                (
                    "upstream.url: is missing: the address of the service that events go to\n    "
                    "write upstream: {url: https://us.i.example.com}"
                )
            ],
        ),
        (
            "upstream:\n\turl: https://h",
            [
                (
                    "2: isn't YAML: a tab stands here, and YAML is indented with blanks alone\n   "
                    " replace each tab"
                )
            ],
        ),
        ("upstream:\n  url: h\n\tproxy: x", ["3: isn't YAML: a tab stands here"]),
        (
            "upstream:\n  url: h\n   timeout: 3s",
            ["3: isn't YAML: this line can't have a key\n    indent it like the keys beside it"],
        ),
        (
            "upstream:\n    url: h\n  timeout: 3s",
            ["3: isn't YAML: this line is indented otherwise than the keys beside it"],
        ),
        (
            "upstream:\n  url: 'h\nlog:\n  level: info\n",
            ["2: isn't YAML: the quote that begins here has no end"],
        ),
        (
            "log:\n  level: %x",
            ["2: isn't YAML: a value can't begin with %\n    put the value in quotes"],
        ),
        (
            "admin:\n  listen: *:8321",
            ["2: isn't YAML: * at the beginning of a value names an alias"],
        ),
        (
            "admin: {listen: [::1]:8321}",
            ["1: isn't YAML: [ or { begins a list or a section here\n    quote values"],
        ),
        (
            "admin:\n  listen\n  hosts: []",
            [
                (
                    "3: isn't YAML: this line can't have a key\n    indent it like the keys "
                    "beside it, or see whether"
                )
            ],
        ),
        (
            f"{URL}---\nlog: {{}}",
            ["2: isn't YAML: a second document begins here\n    remove the line with ---"],
        ),
        (URL.encode("utf-16"), [" isn't UTF-8 text\n    save it as UTF-8"]),
        (
            f"{URL}sources: {{kafka: {{name: a}}}}",
            ["2: sources.kafka: is a list\n    begin each item with a dash"],
        ),
    ],
)
def test_a_file(tmp_path: Path, text: str | bytes, expected: list[str]) -> None:
    """Sections, lists, names and YAML itself: nothing but what is wrong is reported, in the order
    of the lines.
    """
    reported = problems(tmp_path, text)
    assert len(reported) == len(expected), reported
    assert all(
        problem.startswith(beginning) for problem, beginning in zip(reported, expected, strict=True)
    ), reported


@cases(
    "text",
    [
        b"\xef\xbb\xbf" + URL.encode(),
        URL.replace("\n", "\r\n").encode(),
        b'{"upstream": {"url": "https://h"}}',
    ],
)
def test_what_is_no_mistake(tmp_path: Path, text: bytes) -> None:
    """A byte order mark, the line ends of Windows, and JSON are read as they are meant."""
    file = tmp_path / "forwarder.yaml"
    file.write_bytes(text)
    assert load_settings(file, {}).settings.upstream.url.startswith("https://h")


def test_a_directory_instead_of_a_file(tmp_path: Path) -> None:
    """The message names the file that may be meant."""
    with pytest.raises(
        InvalidConfiguration,
        match=f"Is a directory\n    name the file in it: --config {tmp_path}/forwarder.yaml",
    ):
        load_settings(tmp_path, {})


def test_everything_is_found_in_one_pass(tmp_path: Path) -> None:
    """Unknown keys, values, conflicts, missing files, gaps and variables at once, by line; not
    what another problem may be the cause of.
    """
    text = """
upstream: {url: https://h.example.com, timout: 3s}
buffer: {kind: dsik, ack: disk}
batch: {max_bytes: 30MB, max_age: 5}
sources:
  http:
    tls: {cert_file: /nowhere/cert, key_file: /nowhere/key}
    api_keys_file: /nowhere/keys
  kafka:
    - {topics: [x], commit: disk}
"""
    reported = problems(
        tmp_path,
        text,
        FORWARDER_WORKERS="many",
        FORWARDER_UPSTREAM__ULR="x",
        FORWARDER_SOURCES__KAFKA__3__NAME="gap",
    )
    assert [problem.partition(" ")[0] + problem.split(": ")[1] for problem in reported] == [
        "2:upstream.timout",
        "3:buffer.kind",
        "4:batch.max_age",
        "4:batch.max_bytes",
        "7:sources.http.tls.cert_file",
        "7:sources.http.tls.key_file",
        "8:sources.http.api_keys_file",
        "10:sources.kafka[0].bootstrap_servers",
        "FORWARDER_UPSTREAM__ULR:unknown setting\n    did you mean FORWARDER_UPSTREAM__URL?",
        "FORWARDER_SOURCES__KAFKA__3__NAME:sources.kafka[3]",
        "FORWARDER_WORKERS:workers",
    ]


def test_a_file_that_cannot_be_parsed_hides_no_variable(tmp_path: Path) -> None:
    """What the environment holds is checked all the same; what the file may
    hold is not called missing.
    """
    reported = problems(tmp_path, "upstream: [", FORWARDER_LOG__LEVEL="loud")
    assert [problem.split(": ")[0] for problem in reported] == ["1", "FORWARDER_LOG__LEVEL"]
