"""Cross-field validation of logs: what is read, how lines are parsed, how they become events. And
of log records over HTTP.

A key that would have no effect is reported: its author expects one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from forwarder.config.conflicts import Conflict
from forwarder.config.settings import Settings
from forwarder.config.source_checks import (
    commit_conflicts,
    event_conflicts,
    in_flight_conflicts,
    mapping_conflicts,
    same_names,
)
from forwarder.config.source_settings import LogSourceSettings, MultilineSettings, OtlpSettings

WITH_TIMES: Final = frozenset({"combined", "common", "syslog", "cri"})
"""The formats whose lines have a time of their own."""

WITH_MESSAGES: Final = frozenset({"syslog", "cri"})
"""The formats whose lines have a message, which may have a format of its own."""

_OF_FILES: Final = ("exclude", "read_from", "max_open_files", "poll_interval", "rotate_wait")
"""Keys that have no effect on standard input."""

_DEFAULTS: Final = LogSourceSettings()


def log_conflicts(settings: Settings) -> Iterator[Conflict]:
    """Everything that doesn't fit in `sources.logs`. Reads the files of salts."""
    yield from same_names(
        "sources.logs", "source", [source.name for source in settings.sources.logs]
    )
    yield from _one_stdin(settings)
    for number, source in enumerate(settings.sources.logs):
        key = f"sources.logs[{number}]"
        for check in (_what_is_read, _pattern, _message_format, _multiline):
            yield from check(key, source)
        yield from event_conflicts(key, source.mapping, source.api_key, source.api_key_file)
        yield from commit_conflicts(key, source.commit, settings)
        yield from in_flight_conflicts(key, source.max_in_flight, settings)
        yield from mapping_conflicts(
            f"{key}.mapping", source.mapping, own_times=source.format in WITH_TIMES
        )


def otlp_conflicts(settings: Settings) -> Iterator[Conflict]:
    """Everything that doesn't fit in `sources.http.otlp`. Reads the file of the salt."""
    otlp = settings.sources.http.otlp
    key = "sources.http.otlp"
    if otlp != OtlpSettings():
        yield from event_conflicts(key, otlp.mapping, otlp.api_key, otlp.api_key_file)
        yield from mapping_conflicts(f"{key}.mapping", otlp.mapping, own_times=True)


def _one_stdin(settings: Settings) -> Iterator[Conflict]:
    reading = [number for number, source in enumerate(settings.sources.logs) if source.stdin]
    for number in reading[1:]:
        message = f"can't be set here and in sources.logs[{reading[0]}]: each line is read once"
        yield Conflict(f"sources.logs[{number}].stdin", message, "keep one of the two")


def _what_is_read(key: str, source: LogSourceSettings) -> Iterator[Conflict]:
    if source.stdin and source.path:
        yield Conflict(
            f"{key}.stdin",
            f"can't be beside {key}.path",
            "keep one of the two, and make an item of its own of the other",
        )
    if not source.stdin and not source.path:
        yield Conflict(
            f"{key}.path",
            "is missing: what to read",
            f"name files, such as /var/log/app/*.log, or set {key}.stdin",
        )
    if source.stdin and not source.path:
        for name in _OF_FILES:
            if getattr(source, name) != getattr(_DEFAULTS, name):
                yield Conflict(
                    f"{key}.{name}", "has no effect on standard input", "leave the key out"
                )


def _pattern(key: str, source: LogSourceSettings) -> Iterator[Conflict]:
    name = f"{key}.pattern"
    needed = "regex" in {source.format, source.message_format}
    if needed and source.pattern is None:
        yield Conflict(
            name,
            "is missing: how a line is written",
            "for example: '(?P<level>[A-Z]+) (?P<user>\\S+) (?P<message>.*)'",
        )
    if needed and source.pattern is not None and not _names_a_group(source.pattern):
        yield Conflict(
            name,
            "has no named groups: the record would have no fields",
            "name them, such as (?P<user>\\S+)",
        )
    if not needed and source.pattern is not None:
        yield Conflict(
            name,
            f"has no effect with format {source.format}",
            f"set {key}.format to regex, or leave the key out",
        )


def _names_a_group(pattern: str) -> bool:
    from forwarder.core.patterns import LinearPattern  # noqa: PLC0415 -- few have a pattern

    return bool(LinearPattern(pattern).names)


def _message_format(key: str, source: LogSourceSettings) -> Iterator[Conflict]:
    if source.message_format is not None and source.format not in WITH_MESSAGES:
        message = (
            f"has no effect with format {source.format}: only lines of format cri and syslog "
            "hold a message"
        )
        yield Conflict(
            f"{key}.message_format", message, f"leave the key out, or correct {key}.format"
        )


def _multiline(key: str, source: LogSourceSettings) -> Iterator[Conflict]:
    if source.multiline.start is None and source.multiline != MultilineSettings():
        hint = "for example '^\\d{4}-\\d\\d-\\d\\d'; or leave the section out"
        yield Conflict(f"{key}.multiline.start", "is missing: how a record begins", hint)
