"""`forwarder send`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from forwarder.admin.server import AdminServer
from forwarder.cli.app import app
from forwarder.cli.send import EventPlace, EventSearch, LaneSearch, Whereabouts
from forwarder.cli.target import choose_target
from forwarder.core.errors import ForwarderError
from forwarder.core.event import Lane
from forwarder.inspect.explain import Trace
from forwarder.telemetry.labels import lane_label
from forwarder.telemetry.snapshot import LaneSnapshot, Snapshot, Upstream, UpstreamState
from tests.support.cases import cases
from tests.support.commands import invoked
from tests.support.snapshots import FULL
from tests.support.upstream import Upstream as ScriptedUpstream
from tests.support.upstream import plain
from tests.support.whole import KEY, Whole

LANE = lane_label(Lane(KEY))
EMPTY = LaneSnapshot(LANE)
ONE = {"http": 1}
BUFFERED = Trace("buffered, not yet sent", LANE, 0.0)
LETTER = Trace("dead letter 7", LANE, 0.0, "refused", "400 from the service", "in x.db")


@asynccontextmanager
async def daemon(folder: Path, url: str) -> AsyncIterator[tuple[Whole, list[str]]]:
    """A forwarder with an admin server, and the options by which a command finds it
    and its files.
    """
    letters = {"path": str(folder)}
    async with Whole(url, dead_letters=letters) as whole, AsyncExitStack() as stack:
        admin = AdminServer(whole.pipeline.snapshot, whole.pipeline.explain)
        await admin.start("127.0.0.1:0")
        stack.push_async_callback(admin.close)
        http = {"listen": whole.address, "api_keys": [KEY]}
        config = {
            "sources": {"http": http},
            "admin": {"listen": admin.address},
            "dead_letters": letters,
        }
        (folder / "forwarder.yaml").write_text(json.dumps(config))
        yield whole, ["--config", str(folder / "forwarder.yaml")]


async def test_an_event_is_delivered(tmp_path: Path) -> None:
    """It is sent to the configured listener with the first configured key, and followed until it
    is delivered; values are JSON or text.
    """
    async with ScriptedUpstream() as upstream, daemon(tmp_path, upstream.url) as (_, options):
        given = [
            "plan=team",
            "seats=5",
            'nested={"a": [1.5, null]}',
            "day=2026-01-31",
            "none=NaN",
            "empty=",
            "a=b=c",
        ]
        given += ("large=1e999", r'half="\ud800"', f"deep={'[' * 400}{']' * 400}")
        properties = [word for assignment in given for word in ("--property", assignment)]
        done = await invoked("send", "signed up", "--distinct-id", "zoë", *properties, *options)
        assert (done.code, done.err) == (0, "")
        assert [line.split()[0] for line in done.out.splitlines()][:2] == ["sent", "received"]
        assert done.out.splitlines()[-1].startswith("delivered ")
        (event,) = [event for request in upstream.requests for event in request.events]
        assert event["uuid"] in done.out
        assert (event["event"], event["distinct_id"]) == ("signed up", "zoë")
        nested = {"a": [1.5, None]}
        rest = {
            "day": "2026-01-31",
            "none": "NaN",
            "large": "1e999",
            "half": r'"\ud800"',
            "empty": "",
            "a": "b=c",
        }
        assert isinstance(event["properties"].pop("deep"), list)
        assert {name: event["properties"][name] for name in event["properties"]} == {
            "plan": "team",
            "seats": 5,
            "nested": nested,
            **rest,
        }


@pytest.mark.slow
async def test_a_dead_letter_is_found_in_the_files(tmp_path: Path) -> None:
    """Beside the dead letters of others, with its reason and what shows it; as JSON, too."""
    async with ScriptedUpstream() as upstream, daemon(tmp_path, upstream.url) as (_, options):
        done = await invoked("send", "x", "--distinct-id", "", *options)
        assert done.code == 1
        assert "Error: the event is a dead letter: missing_distinct_id" in done.err
        assert f"`forwarder dead-letters show 1 {' '.join(options)}`" in done.err
        with capture_logs():  # the daemon's lines go where the command's do
            done = await invoked("send", "x", "--distinct-id", "", "--output", "json", *options)
        assert (done.code, json.loads(done.out)["where"]) == (1, "dead letter")


async def test_files_of_another_daemon_decide_nothing(tmp_path: Path) -> None:
    """They don't hold the dead letter, which doesn't mean that the event was delivered."""
    (tmp_path / "other").mkdir()
    async with (
        ScriptedUpstream() as upstream,
        daemon(tmp_path, upstream.url) as (_, options),
        daemon(tmp_path / "other", upstream.url),
    ):
        configured = json.loads((tmp_path / "forwarder.yaml").read_text())
        configured["dead_letters"]["path"] = str(tmp_path / "other")
        (tmp_path / "forwarder.yaml").write_text(json.dumps(configured))
        done = await invoked("send", "x", "--distinct-id", "", *options)
        assert (
            done.code,
            "Error: the event is a dead letter: missing_distinct_id" in done.err,
        ) == (1, True)


async def test_what_is_not_delivered_in_time_stays(tmp_path: Path) -> None:
    """The command says why it is still buffered, and how to find it later."""
    async with daemon(tmp_path, "http://127.0.0.1:9") as (_, options):
        done = await invoked("send", "x", "--timeout", "500ms", *options)
    assert done.code == 1
    assert "the upstream http://127.0.0.1:9 is down" in done.out
    assert "wasn't delivered within 0.5 s; it stays buffered\n  `forwarder explain " in done.err


async def test_a_halted_lane_is_not_waited_for(tmp_path: Path) -> None:
    """It says so and what to do, long before its time is over."""
    async with (
        ScriptedUpstream(lambda _: plain(401, "unknown key")) as upstream,
        daemon(tmp_path, upstream.url) as (_, options),
    ):
        done = await invoked("send", "x", "--timeout", "1h", *options)
    assert done.code == 1
    assert f"lane {LANE} is halted: unknown_key: " in done.out
    assert "the event isn't delivered while its lane is halted; it stays buffered\n  " in done.err
    assert "`forwarder explain " in done.err


async def test_a_plain_service_accepts_or_rejects(tmp_path: Path) -> None:
    """Without a known daemon there the answer is all that can be known; 503 is repeated after
    Retry-After, other answers are final.
    """
    async with ScriptedUpstream() as upstream:
        upstream.script.append(plain(503, "full", retry_after="0"))
        to = ["--to", upstream.url, "--api-key", KEY, "--admin", "127.0.0.1:1"]
        done = await invoked("send", "x", *to[:4])
        assert done.code == 0
        assert "waiting    503 full, retried in 0.05 s\naccepted " in done.out
        assert "so the event can't be followed" in done.err
    async with ScriptedUpstream() as upstream:
        upstream.script.append(plain(401, "API key is not valid"))
        done = await invoked("send", "x", "--to", upstream.url, "--api-key", KEY)
        assert done.code == 1
        assert "rejected the event: 401 API key is not valid\n  Name a key" in done.err


@cases(
    ("args", "code", "said"),
    [
        (
            ["x", "--to", "http://127.0.0.1:9", "--api-key", KEY],
            3,
            "http://127.0.0.1:9: Connection refused\n  Start a daemon",
        ),
        (
            ["x", "--to", "unix:/nowhere/sock", "--api-key", KEY],
            3,
            "nothing accepts events at unix:/nowhere/sock: No such file",
        ),
        (["x", "--to", "http://127.0.0.1:9"], 2, "there is no project key to send with"),
        (["x", "--api-key", "phx_personal"], 2, "--api-key: it is a personal key"),
        (
            ["x", "--api-key", KEY, "--to", "ftp://127.0.0.1"],
            2,
            "--to: it must begin with http:// or https://",
        ),
        (["x", "--api-key", KEY, "--to", "localhost:8320"], 2, "write it as http://localhost:8320"),
        (["x", "--api-key", KEY, "--timeout", "soon"], 2, "--timeout: "),
        (["x", "--api-key", KEY, "--property", "=5"], 2, "'=5' is not NAME=VALUE"),
        ([" ", "--api-key", KEY], 2, "the event needs a name"),
        (["x\udcff", "--api-key", KEY], 2, "EVENT: it isn't UTF-8"),
        (["x", "--api-key", KEY, "--distinct-id", "\udcff"], 2, "--distinct-id: it isn't UTF-8"),
        (["x", "--api-key", KEY, "--property", "a\udcff=5"], 2, "--property: it isn't UTF-8"),
        (
            ["x", "--to", "http://127.0.0.1:9", "--api-key", KEY, "--admin", "127.0.0.1:9"],
            3,
            "no daemon answers at 127.0.0.1:9",
        ),
    ],
)
def test_what_can_not_be_sent_is_said(args: list[str], code: int, said: str) -> None:
    """Before anything is sent; no key is repeated."""
    result = CliRunner().invoke(app, ["send", *args], env={"COLUMNS": "200"})
    expected = isinstance(result.exception, ForwarderError)  # `main` reports it, with exit code 2
    shown = f"{result.output}{result.exception}"
    assert (2 if expected else result.exit_code) == code
    assert said in shown
    assert "phx_personal" not in shown


MAPPING = {"event": ".e", "distinct_id": ".d"}


@pytest.mark.parametrize(
    "source",
    [
        {"http": {"api_keys_file": "key"}},
        {"http": {"otlp": {"api_key_file": "key", "mapping": MAPPING}}},
        {
            "kafka": [
                {"name": "k", "bootstrap_servers": "h:9", "topics": ["t"], "api_key_file": "key"}
            ]
        },
        {
            "logs": [
                {
                    "name": "l",
                    "path": "/x",
                    "format": "json",
                    "mapping": MAPPING,
                    "api_key_file": "key",
                }
            ]
        },
    ],
)
def test_the_key_may_stand_in_a_file(source: dict[str, Any], tmp_path: Path) -> None:
    """Wherever one is configured for events, it is the key to send with."""
    key = tmp_path / "key"
    key.write_text(f"{KEY}\n")
    file = tmp_path / "forwarder.yaml"
    file.write_text(json.dumps({"sources": source}).replace('"key"', json.dumps(str(key))))
    assert choose_target("http://127.0.0.1:9", None, None, file).api_key == KEY


def snapshot(lane: LaneSnapshot, upstream: Upstream | None = None, now: float = 9.0) -> Snapshot:
    """A daemon with one lane."""
    return replace(FULL, lanes=(lane,), now=now, upstream=upstream or Upstream("http://up"))


def search(
    lane: Callable[[], Snapshot | None], traces: list[Trace], files: list[Trace] | None
) -> EventSearch:
    """A search that sees these, without waiting."""
    return EventSearch(
        [LaneSearch(LANE, "", EMPTY, lambda _, __: files)],
        live=lane,
        traces=lambda: traces,
        pause=lambda _: None,
    )


def only(places: Sequence[Whereabouts]) -> Whereabouts:
    """Where the event is, for the only destination."""
    (one,) = places
    return one


DOWN = Upstream("http://up", UpstreamState.DOWN, "timeout")
HALTED = LaneSnapshot(LANE, buffered=1, halted="unknown_key", why="401", hint="check the key")


@cases(
    ("after", "live", "files", "expected"),
    [
        (LaneSnapshot(LANE, ONE, delivered=1), [], None, Whereabouts(EventPlace.DELIVERED)),
        (LaneSnapshot(LANE, ONE), [], None, Whereabouts(EventPlace.BUFFERED, f"in lane {LANE}")),
        (EMPTY, [], None, Whereabouts(EventPlace.BUFFERED, f"in lane {LANE}")),
        (
            LaneSnapshot(LANE, buffered=1),
            [BUFFERED],
            None,
            Whereabouts(EventPlace.BUFFERED, f"in lane {LANE}"),
        ),
        (
            HALTED,
            [BUFFERED],
            None,
            Whereabouts(
                EventPlace.BUFFERED,
                f"lane {LANE} is halted: unknown_key: 401",
                "check the key",
                halted=True,
            ),
        ),
        (
            LaneSnapshot(LANE, dead_lettered={"refused": 1}),
            [],
            [LETTER],
            Whereabouts(EventPlace.DEAD_LETTER, "refused: 400 from the service", "in x.db"),
        ),
        (
            LaneSnapshot(LANE, delivered=1, dead_lettered={"refused": 1}),
            [],
            [],
            Whereabouts(EventPlace.DELIVERED),
        ),
        (
            LaneSnapshot(LANE, dead_lettered={"refused": 1}),
            [],
            None,
            Whereabouts(EventPlace.DEAD_LETTER, "refused"),
        ),
        (
            LaneSnapshot(LANE, dead_lettered={"refused": 1}),
            [],
            [],
            Whereabouts(EventPlace.DEAD_LETTER, "refused"),
        ),
        (
            LaneSnapshot(LANE, dropped={"buffer_full": 1}),
            [],
            [],
            Whereabouts(EventPlace.DROPPED, "buffer_full"),
        ),
        (
            LaneSnapshot(LANE, dropped={"buffer_full": 1}),
            [],
            None,
            Whereabouts(EventPlace.DROPPED, "buffer_full"),
        ),
        (
            LaneSnapshot(LANE, buffered=1, oldest_age=1.5),
            [],
            [BUFFERED],
            Whereabouts(EventPlace.BUFFERED, f"in lane {LANE}"),
        ),
    ],
)
def test_where_an_event_is(
    after: LaneSnapshot, live: list[Trace], files: list[Trace] | None, expected: Whereabouts
) -> None:
    """Its daemon's memory, then the lane's counts, then the files decide."""
    assert search(lambda: snapshot(after), live, files).look() == [expected]


def test_an_event_is_not_among_pending_ones_that_are_younger() -> None:
    """A lane with steady traffic always has pending events; once they all came after this one, it
    was delivered.
    """
    now = [9.0]
    after = LaneSnapshot(LANE, {"http": 11}, delivered=9, buffered=2, oldest_age=0.5)
    steady = search(lambda: snapshot(after, now=now[0]), [], None)
    assert only(steady.look()).place is EventPlace.BUFFERED
    now[0] = 10.0
    assert only(steady.look()).place is EventPlace.DELIVERED


def test_what_can_not_be_seen_is_unknown() -> None:
    """Other events of the lane were delivered and dead-lettered meanwhile, and there are no files
    to search.
    """
    after = LaneSnapshot(LANE, delivered=5, dead_lettered={"refused": 2})
    answer = only(search(lambda: snapshot(after), [], None).look())
    assert (answer.place, "refused" in answer.why, "--config FILE" in answer.hint) == (
        EventPlace.UNKNOWN,
        True,
        True,
    )


def test_a_buffered_event_says_that_the_upstream_is_down() -> None:
    """So that it is known why it waits; a daemon that went away meanwhile is said, too."""
    after = LaneSnapshot(LANE, buffered=1)
    waiting = only(search(lambda: snapshot(after, DOWN), [BUFFERED], []).look())
    assert "is down: timeout" in waiting.why
    assert "doesn't answer any more" in only(search(lambda: None, [], []).look()).why
