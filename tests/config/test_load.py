"""From file and environment to settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwarder.config.keys import Path as KeyPath
from forwarder.config.keys import keys, lists, parts
from forwarder.config.layers import InvalidConfiguration, Origin, Place, Problem, Sourced, nested
from forwarder.config.load import Loaded, load_settings
from forwarder.config.section import MIB
from forwarder.config.settings import Settings
from forwarder.core.ack import AckLevel
from forwarder.core.ports import Ordering
from tests.support.cases import cases

URL = {"FORWARDER_UPSTREAM__URL": "https://h.example.com"}


def load(folder: Path, text: str = "", environ: Mapping[str, str] = URL) -> Loaded:
    """What a file that holds `text` and an environment make."""
    file = folder / "forwarder.yaml"
    file.write_text(text, "utf-8")
    return load_settings(file, environ)


def problems(folder: Path, text: str = "", environ: Mapping[str, str] = URL) -> dict[str, str]:
    """The text of each problem by its key."""
    with pytest.raises(InvalidConfiguration) as caught:
        load(folder, text, environ)
    return {problem.key: str(problem) for problem in caught.value.problems}


def test_an_address_is_all_it_needs(tmp_path: Path) -> None:
    """With nothing but the upstream's address everything has its default."""
    loaded = load_settings(None, URL, default_file=tmp_path / "none.yaml")
    assert loaded.settings == Settings.parse({"upstream": {"url": "https://h.example.com"}})
    assert loaded.file is None
    assert str(loaded.origins["upstream.url"]) == "FORWARDER_UPSTREAM__URL"
    assert {str(origin) for name, origin in loaded.origins.items() if name != "upstream.url"} == {
        "default"
    }


def test_the_defaults_are_those_of_the_documents() -> None:
    """The values that are promised."""
    default = Settings()
    assert (default.buffer.limit, default.buffer.ack_level, default.dead_letter_limit) == (
        64 * MIB,
        AckLevel.MEMORY,
        16 * MIB,
    )
    assert default.sources.http.listen == "127.0.0.1:8320"
    assert (default.batch.max_bytes, default.batch.max_events, default.batch.max_age) == (
        5_000_000,
        5000,
        1.0,
    )
    assert default.delivery.ordering is None
    assert default.delivery.retry.give_up_after is None
    assert default.log.format is None
    assert (default.shutdown.delay, default.shutdown.drain_timeout) == (0, 25)


def test_without_an_address_it_says_how_to_give_one(tmp_path: Path) -> None:
    """The first mistake of everyone gets an example to copy."""
    with pytest.raises(
        InvalidConfiguration,
        match=re.escape("FORWARDER_UPSTREAM__URL=https://us.i.example.com forwarder run"),
    ) as caught:
        load_settings(None, {}, default_file=tmp_path / "none.yaml")
    assert [problem.key for problem in caught.value.problems] == ["upstream.url"]
    assert (
        load_settings(
            None, {}, default_file=tmp_path / "none.yaml", require_upstream=False
        ).settings
        == Settings()
    )


def test_the_default_file_is_read_if_it_is_there(tmp_path: Path) -> None:
    """Without a path the file at the usual place is taken."""
    file = tmp_path / "forwarder.yaml"
    file.write_text("upstream: {url: https://h}\n")
    loaded = load_settings(None, {}, default_file=file)
    assert loaded.file == file
    assert loaded.settings.upstream.url == "https://h"
    assert str(loaded.origins["upstream.url"]) == f"{file}:1"


def test_the_default_file_that_may_not_be_looked_at_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that can't be read is never taken for one that isn't there."""

    def forbidden(_: Path, *_args: object, **_options: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", forbidden)
    monkeypatch.setattr(os, "open", forbidden)
    with pytest.raises(InvalidConfiguration, match="can't be read: Permission denied"):
        load_settings(None, URL, default_file=tmp_path / "forwarder.yaml")


def test_the_process_environment_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings come from what the caller gives, and from nowhere else."""
    monkeypatch.setenv("UPSTREAM", '{"url": "https://elsewhere"}')
    monkeypatch.setenv("LOG", '{"level": "debug"}')
    assert load(tmp_path).settings.upstream.url == "https://h.example.com"
    assert Settings().log.level == "info"


def test_lists_can_be_written_three_ways(tmp_path: Path) -> None:
    """YAML, commas, and JSON in a variable mean the same."""
    name = "FORWARDER_SOURCES__HTTP__TRUSTED_PROXIES"
    in_yaml = load(tmp_path, "sources: {http: {trusted_proxies: [10.0.0.1, fd00::/8]}}").settings
    with_commas = load(tmp_path, environ={**URL, name: "10.0.0.1, fd00::/8,"}).settings
    in_json = load(tmp_path, environ={**URL, name: '["10.0.0.1", "fd00::/8"]'}).settings
    assert in_yaml == with_commas == in_json
    assert [str(network) for network in in_yaml.sources.http.trusted_proxies] == [
        "10.0.0.1/32",
        "fd00::/8",
    ]


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    """Structure, values, variables and what doesn't fit together are one list, each
    with its place.
    """
    text = (
        "upstream:\n  url: https://u:hunter2@h\n  timout: 1s\n  timeout: 30\nlog:\n  level: loud\n"
    )
    reported = problems(tmp_path, text, {"FORWARDER_BATCH__MAX_EVENTS": "many", "FORWARDER_X": "1"})
    assert set(reported) == {
        "upstream.url",
        "upstream.timout",
        "upstream.timeout",
        "log.level",
        "batch.max_events",
        "",
    }
    assert (
        f"{tmp_path}/forwarder.yaml:4: upstream.timeout: 30 has no unit"
        in reported["upstream.timeout"]
    )
    assert reported["batch.max_events"].startswith(
        "FORWARDER_BATCH__MAX_EVENTS: batch.max_events: 'many'"
    )
    assert "must be 'debug', 'info', 'warning' or 'error'" in reported["log.level"]
    assert "hunter2" not in str(reported)


@cases(
    ("key", "value", "message"),
    [
        ("batch.max_events", "true", "whole number"),
        ("batch.max_events", "0", "from 1 to"),
        ("batch.max_events", "1.5", "whole number"),
        ("batch.max_age", "-1s", "not a time"),
        ("batch.max_age", "[1s]", "not a time"),
        ("batch.max_age", "2h", "from 0s to 1h"),
        ("batch.max_bytes", "[1]", "not a size"),
        ("buffer.max_bytes", "1kB", "from 1MiB"),
        ("buffer.kind", "tape", "must be 'memory' or 'disk'"),
        ("buffer.ack", "fsync", "must be 'memory', 'disk' or 'delivered'"),
        ("buffer.ack_timeout", "0s", "from 100ms to 1h"),
        ("buffer.when_full", "drop", "must be 'reject', 'drop_newest' or 'drop_oldest'"),
        ("workers", "0", "from 1 to 64"),
        ("upstream.timeout", "never", "not a time"),
        ("upstream.verify_keys", "maybe", "boolean"),
        ("upstream.proxy", "proxy:3128", "http://"),
        ("delivery.concurrency", "fast", "adaptive or a whole number from 1 to 256"),
        ("delivery.concurrency", "257", "from 1 to 256"),
        ("delivery.ordering", "sorted", "'per_distinct_id'"),
        ("delivery.retry.give_up_after", "0s", "or never"),
        ("sources.http.cors_origins", "'https://a.example.com/'", "no slash"),
        ("sources.http.path_prefix", "ingest", "write /ingest"),
        ("sources.http.path_prefix", "/", "not a path prefix"),
        ("sources.http.path_prefix", "/ingest/", "none at the end"),
        ("sources.http.path_prefix", "/a//b", "not a path prefix"),
        ("sources.http.path_prefix", "/a.b", "not a path prefix"),
        ("sources.http.path_prefix", "/a%20b", "not a path prefix"),
        ("sources.http.path_prefix", "/i", "can't be distinguished from /i, which SDKs use"),
        ("sources.http.path_prefix", "/static/x", "can't be distinguished from /static"),
        ("sources.http.path_prefix", "/api", "can't be distinguished from /api/feature_flag"),
        ("sources.http.path_prefix", "/a,/a/b", "/a and /a/b can't be distinguished"),
        ("sources.http.path_prefix", "/a,/a", "can't be distinguished"),
        ("sources.http.api_keys", "'[broken'", "JSON list"),
        ("sources.http.listen", "'8320'", "127.0.0.1:8320"),
        ("admin.listen", "127.0.0.1:99999", "65535"),
    ],
)
def test_a_value_that_cannot_be_used_says_how_to_write_it(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    """The problem names its line, its key and what to write."""
    *parents, name = key.split(".")
    text = (
        "".join(f"{'  ' * depth}{parent}:\n" for depth, parent in enumerate(parents))
        + "  " * len(parents)
        + f"{name}: {value}\n"
    )
    ((reported, problem),) = problems(tmp_path, text).items()
    assert reported.removesuffix("[0]") == key
    assert message in problem
    assert f"forwarder.yaml:{len(parents) + 1}: " in problem


def test_adaptive_never_and_orders_are_read(tmp_path: Path) -> None:
    """Words that stand for a value."""
    text = "delivery: {concurrency: '8', ordering: strict, retry: {give_up_after: 1h}}\n"
    delivery = load(tmp_path, text).settings.delivery
    assert (delivery.concurrency, delivery.ordering, delivery.retry.give_up_after) == (
        8,
        Ordering.STRICT,
        3600,
    )
    never = load(
        tmp_path, text, {**URL, "FORWARDER_DELIVERY__RETRY__GIVE_UP_AFTER": "never"}
    ).settings.delivery.retry
    assert never.give_up_after is None


def test_project_keys_come_from_a_file_too(tmp_path: Path) -> None:
    """Keys of the file join those of the list, each once."""
    secret = tmp_path / "keys"
    secret.write_text("# ours\nphc_second\n\n  phc_first  \n")
    settings = load(
        tmp_path, f"sources: {{http: {{api_keys: [phc_first], api_keys_file: {secret}}}}}\n"
    ).settings
    assert tuple(settings.sources.http.api_keys) == ("phc_first", "phc_second")


@cases(
    ("text", "message"),
    [
        ("", "no key"),
        ("# none\n", "no key"),
        ("phx_hunter2hunter2\n", "line 1: it is a personal key"),
        (None, "can't be read"),
    ],
)
def test_a_key_file_without_keys_is_a_problem(
    tmp_path: Path, text: str | None, message: str
) -> None:
    """An empty file must not mean that every key is taken."""
    secret = tmp_path / "keys"
    if text is not None:
        secret.write_text(text)
    reported = problems(tmp_path, f"sources:\n  http:\n    api_keys_file: {secret}\n")
    assert message in reported["sources.http.api_keys_file"]
    assert "hunter2" not in str(reported)


@cases("key", ["phx_personal_hunter2", "", "phc_ünicode_hunter2", "x" * 65, "a\x00b"])
def test_what_cannot_be_a_project_key_is_refused_unseen(tmp_path: Path, key: str) -> None:
    """A personal key, in the wrong place, is reported but not shown."""
    reported = problems(
        tmp_path, f"sources: {{http: {{api_keys: [phc_good, {json.dumps(key)}]}}}}\n"
    )
    assert list(reported) == ["sources.http.api_keys[1]"]
    assert "hunter2" not in str(reported)


def test_settings_do_not_show_secrets() -> None:
    """The text of the settings, which ends up in tracebacks, holds no key and no
    proxy's password.
    """
    text = repr(
        Settings.parse(
            {
                "upstream": {"proxy": "http://u:hunter2@p:1"},
                "sources": {"http": {"api_keys": ["phc_hunter2"]}},
            }
        )
    )
    assert "hunter2" not in text


SAMPLES: dict[KeyPath, list[Any]] = {
    ("upstream", "url"): ["https://one.example.com", "http://two.example.com/base"],
    ("upstream", "compression"): ["gzip", "none"],
    ("upstream", "timeout"): ["10s", "500ms"],
    ("upstream", "verify_keys"): [True, False],
    ("sources", "http", "listen"): ["127.0.0.1:1", "[::1]:2", "unix:/run/x"],
    ("sources", "http", "max_body"): ["1MB", "2MiB", 3000],
    ("sources", "http", "cors_origins"): [
        ["*"],
        ["https://a.example.com", "https://b.example.com"],
    ],
    ("sources", "http", "max_lanes"): [1, 50],
    ("sources", "http", "path_prefix"): [["/ingest"], ["/a/b", "/api/events"]],
    ("buffer", "kind"): ["memory", "disk"],
    ("buffer", "path"): ["/srv/a", "state"],
    ("buffer", "max_bytes"): ["64MiB", "2GB"],
    ("buffer", "ack"): ["memory", "delivered"],
    ("buffer", "when_full"): ["reject", "drop_oldest"],
    ("batch", "max_events"): [1, 1000],
    ("delivery", "concurrency"): ["adaptive", 4],
    ("delivery", "ordering"): ["none", "strict"],
    ("delivery", "retry", "initial"): ["1s", "20ms"],
    ("delivery", "retry", "give_up_after"): ["never", "1h"],
    ("log", "format"): ["json", "console"],
}

choices = st.fixed_dictionaries(
    {}, optional={path: st.sampled_from(values) for path, values in SAMPLES.items()}
)


def in_environment(value: Any) -> str:
    """A value as a variable holds it."""
    return ",".join(value) if isinstance(value, list) else str(value)


@given(in_file=choices, in_environ=choices, indirect=st.sets(st.sampled_from(sorted(SAMPLES))))
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None
)
def test_environment_goes_before_file_before_default(
    tmp_path: Path,
    in_file: dict[KeyPath, Any],
    in_environ: dict[KeyPath, Any],
    indirect: set[KeyPath],
) -> None:
    """Whatever is set where, directly or by reference, each key has the value of its strongest
    place, and names that place.
    """
    written = {
        path: f"${{V_{'_'.join(path)}}}" if path in indirect else value
        for path, value in in_file.items()
    }
    environ = {f"V_{'_'.join(path)}": in_environment(value) for path, value in in_file.items()}
    environ |= {keys()[path].variable: in_environment(value) for path, value in in_environ.items()}
    file = tmp_path / "forwarder.yaml"
    file.write_text(
        json.dumps(
            nested({path: Sourced(value, Origin()) for path, value in written.items()}), indent=1
        )
    )
    loaded = load_settings(file, environ, require_upstream=False)
    expected = {path: Sourced(value, Origin()) for path, value in {**in_file, **in_environ}.items()}
    assert loaded.settings == Settings.parse(nested(expected))
    for name, origin in loaded.origins.items():
        path = parts(name)
        place = (
            Place.ENVIRONMENT
            if path in in_environ
            else Place.FILE
            if path in in_file
            else Place.DEFAULT
        )
        assert origin.place is place


words = st.sampled_from(
    [
        "",
        "never",
        "adaptive",
        "1",
        "-1",
        "1s",
        "1MB",
        "1e999",
        "http://",
        "https://h:99999",
        "unix:",
        "[::1]:1",
        "[",
        "{}",
        "a,b",
        "\0",
        "\ud800",
    ]
)


@pytest.mark.slow
@given(
    key=st.sampled_from([key for key in keys() if key not in lists()]),
    value=words
    | st.text()
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.lists(words | st.integers(), max_size=3)
    | st.just({"a": 1}),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=500, deadline=None
)
def test_no_value_makes_anything_but_settings_or_problems(
    tmp_path: Path, key: KeyPath, value: Any
) -> None:
    """Whatever a key holds, in the file or in the environment, the answer is settings or a list of
    problems that name the key.
    """
    file = tmp_path / "forwarder.yaml"
    file.write_text(json.dumps(nested({key: Sourced(value, Origin())})))
    for path, environ in ((file, {}), (None, {keys()[key].variable: str(value)})):
        reported: tuple[Problem, ...] = ()
        try:
            load_settings(path, environ, default_file=tmp_path / "none", require_upstream=False)
        except InvalidConfiguration as error:
            reported = error.problems
        assert all(
            problem.message and (problem.where or problem.key != keys()[key].name)
            for problem in reported
        )
