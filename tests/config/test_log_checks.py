"""What must fit together for a log, and for log records over HTTP."""

from __future__ import annotations

from typing import Any

from forwarder.config.checks import conflicts
from forwarder.config.settings import Settings
from tests.support.cases import cases

SOURCE: dict[str, Any] = {
    "path": "/var/log/app/*.log",
    "mapping": {"event": ".type", "distinct_id": ".user"},
    "api_key": "phc_a",
}
STDIN: dict[str, Any] = {**{key: SOURCE[key] for key in ("mapping", "api_key")}, "stdin": True}


def conflicts_by_key(*sources: dict[str, Any], **sections: Any) -> dict[str, str]:
    """What doesn't fit in these settings, by key without the list's name."""
    settings = Settings.parse({"sources": {"logs": sources}, **sections})
    return {
        conflict.key.removeprefix("sources.logs"): f"{conflict.message}: {conflict.hint}".replace(
            "sources.logs", ""
        )
        for conflict in conflicts(settings)
    }


def mapped(**rules: Any) -> dict[str, Any]:
    """The source, with these rules too."""
    return {**SOURCE, "mapping": {**SOURCE["mapping"], **rules}}


@cases(
    "source",
    [
        SOURCE,
        STDIN,
        {**SOURCE, "format": "regex", "pattern": r"(?P<user>\S+) (?P<type>\S+)"},
        {**SOURCE, "format": "cri", "message_format": "regex", "pattern": "(?P<user>.)"},
        {**SOURCE, "format": "syslog", "message_format": "json"},
        {**SOURCE, "multiline": {"start": r"^\d"}},
        {**SOURCE, "multiline": {"start": r"\bat\b"}},
        {**STDIN, "multiline": {"start": r"^\d", "max_wait": "1s"}},
        {**mapped(timestamp={"zone": "Europe/Berlin"}), "format": "syslog"},
        mapped(timestamp={"from": ".at", "zone": "Europe/Berlin"}),
    ],
)
def test_what_is_read_and_what_becomes_of_it_is_enough(source: dict[str, Any]) -> None:
    """Each way of saying it, whatever the buffer and the number of workers."""
    assert conflicts_by_key(source) == {}
    assert (
        conflicts_by_key(source, {**SOURCE, "name": "other"}, buffer={"kind": "disk"}, workers=4)
        == {}
    )


@cases(
    ("source", "key", "message"),
    [
        (
            {**SOURCE, "path": []},
            "[0].path",
            "is missing: what to read: name files, such as /var/log/app/*.log, or set [0].stdin",
        ),
        ({**SOURCE, "stdin": True}, "[0].stdin", "can't be beside [0].path: keep one of the two"),
        (
            {**STDIN, "exclude": "*.gz"},
            "[0].exclude",
            "has no effect on standard input: leave the key out",
        ),
        ({**STDIN, "read_from": "end"}, "[0].read_from", "has no effect on standard input"),
        ({**STDIN, "max_open_files": 5}, "[0].max_open_files", "has no effect on standard input"),
        (
            {**SOURCE, "format": "regex"},
            "[0].pattern",
            "is missing: how a line is written: for example: '(?P<level>[A-Z]+)",
        ),
        (
            {**SOURCE, "format": "cri", "message_format": "regex"},
            "[0].pattern",
            "is missing: how a line is written",
        ),
        (
            {**SOURCE, "format": "regex", "pattern": "(.*)"},
            "[0].pattern",
            "has no named groups: the record would have no fields",
        ),
        (
            {**SOURCE, "pattern": "(?P<a>.)"},
            "[0].pattern",
            "has no effect with format json: set [0].format to regex",
        ),
        (
            {**SOURCE, "message_format": "json"},
            "[0].message_format",
            "has no effect with format json: only lines of format cri and syslog",
        ),
        (
            {**SOURCE, "multiline": {"max_wait": "1s"}},
            "[0].multiline.start",
            "is missing: how a record begins",
        ),
        (
            {**SOURCE, "mapping": {"distinct_id": ".u"}},
            "[0].mapping.event",
            "is missing: the expression of the event's name",
        ),
        (
            {**SOURCE, "mapping": {"event": ".e"}},
            "[0].mapping.distinct_id",
            "is missing: the expression of the distinct_id",
        ),
        (
            {**SOURCE, "api_key": None},
            "[0].api_key",
            "is missing: the project that the events belong to: set it, or [0].api_key_file",
        ),
        (
            {**SOURCE, "api_key_file": "/dev/null"},
            "[0].api_key_file",
            "can't be beside [0].api_key: keep one of the two",
        ),
        (
            {**SOURCE, "commit": "disk"},
            "[0].commit",
            "disk needs buffer.kind: disk: set buffer.kind to disk, or [0].commit to delivered",
        ),
        (
            {**SOURCE, "max_in_flight": "999999"},
            "[0].max_in_flight",
            "999999 must hold the largest event, upstream.max_event (1MB)",
        ),
        (
            {**SOURCE, "max_in_flight": "33MiB"},
            "[0].max_in_flight",
            "33MiB may be at most half of buffer.max_bytes (64MiB)",
        ),
        (
            mapped(timestamp={"zone": "CET"}),
            "[0].mapping.timestamp.from",
            "is missing: format and zone say how it is written",
        ),
        (
            {**mapped(timestamp={"format": "unix"}), "format": "cri"},
            "[0].mapping.timestamp.from",
            "is missing",
        ),
        (
            mapped(hash={"field": ".ip"}),
            "[0].mapping.hash.salt_file",
            "is missing: a hash without a key can be guessed",
        ),
    ],
)
def test_what_does_not_fit_is_reported(source: dict[str, Any], key: str, message: str) -> None:
    """One message, which names the keys and says what to do."""
    reported = conflicts_by_key(source)
    assert list(reported) == [key]
    assert message in reported[key]


def test_sources_have_names_of_their_own() -> None:
    """Metrics and derived uuids distinguish sources by them."""
    assert conflicts_by_key(SOURCE, STDIN) == {
        "[1].name": "logs is the name of [0] too: give each source a name of its own"
    }


def test_standard_input_is_read_once() -> None:
    """Each of its lines comes to one reader."""
    (message,) = conflicts_by_key(STDIN, {**STDIN, "name": "b"}).values()
    assert message == "can't be set here and in [0]: each line is read once: keep one of the two"


def test_positions_of_what_is_on_disk() -> None:
    """They need a disk buffer, and no order: a file stays with its forwarder."""
    disk = {"kind": "disk"}
    assert (
        conflicts_by_key({**SOURCE, "commit": "disk"}, buffer=disk, delivery={"ordering": "strict"})
        == {}
    )


def test_log_records_over_http_need_what_makes_them_events() -> None:
    """Nothing, as long as nothing is set; else a name, an id and a project."""

    def missing(otlp: dict[str, Any]) -> list[str]:
        settings = Settings.parse({"sources": {"http": {"otlp": otlp}}})
        return [conflict.key.removeprefix("sources.http.otlp.") for conflict in conflicts(settings)]

    rules = {"event": ".name", "distinct_id": ".user"}
    assert missing({}) == []
    assert missing({"mapping": rules, "api_key": "phc_a"}) == []
    assert (
        missing({"mapping": {**rules, "timestamp": {"zone": "UTC"}}, "api_key_file": "/dev/null"})
        == []
    )
    assert missing({"api_key": "phc_a"}) == ["mapping.event", "mapping.distinct_id"]
    assert missing({"mapping": rules}) == ["api_key"]
    assert missing({"mapping": rules, "api_key": "phc_a", "api_key_file": "/dev/null"}) == [
        "api_key_file"
    ]
