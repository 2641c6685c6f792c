"""`forwarder run` and a cluster that doesn't let everyone in: every way to authenticate, and one
clear error where it doesn't work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forwarder.telemetry.snapshot import Snapshot
from tests.support.kafka import create_topic, unique
from tests.support.members import Members, RunningMember
from tests.support.secure_kafka import (
    FORBIDDEN_TOPIC,
    MODES,
    PASSWORD,
    TOPIC,
    VISIBLE_TOPIC,
    Access,
)
from tests.support.streams import GroupTopic
from tests.support.upstream import Upstream
from tests.support.whole import KEY, accepted, events

pytestmark = pytest.mark.slow

ATTEMPTS = 2
"""After as many the log still has one line."""


@asynccontextmanager
async def started(
    access: Access, mode: str, folder: Path, topic: str = TOPIC, **kafka: Any
) -> AsyncIterator[tuple[RunningMember, Upstream]]:
    """A daemon that reads a topic in one of the `MODES`; `kafka` is what is set otherwise."""
    server, security = access.mode(mode)
    settings = {
        **GroupTopic(server, topic).settings,
        "api_key": KEY,
        "security": access.section(security),
        **kafka,
    }
    async with (
        Upstream() as upstream,
        Members(folder, settings, upstream={"url": upstream.url}) as members,
    ):
        yield await members.start("one"), upstream


async def refused(member: RunningMember) -> dict[str, Any]:
    """The one line about it in the log, after some attempts. The daemon stays ready, and its
    status says the same.
    """
    shown = await member.until(_is_down)
    for _ in range(ATTEMPTS):
        shown = await member.until(partial(_is_down, but=shown.kafka[0].next_try))
    line, *more = complaints(member)
    assert not more, [line, *more]
    assert line["event"] == "kafka: can't read"
    cluster = shown.kafka[0]
    assert f"sources.kafka[0].{cluster.why}" == f"{line['key']}: {line['why']}"
    assert [warning for warning in shown.warnings if cluster.why in warning]
    assert await member.ready() == 200
    assert await member.metric("forwarder_kafka_up") == 0
    assert await member.stop() == 0
    return line


def complaints(member: RunningMember) -> list[dict[str, Any]]:
    """What its log says that isn't in order; that events wait in memory, as is usual, is logged
    at each start.
    """
    said = [line for line in member.said() if line.get("level") not in {"info", "debug"}]
    return [line for line in said if line["event"] != "events wait in memory"]


def _is_down(shown: Snapshot, but: float | None = None) -> bool:
    """Whether an attempt has failed, another one than that after which the next was
    due at `but`.
    """
    return shown.kafka[0].next_try not in {None, but}


USUAL = ("SCRAM-SHA-512 over TLS", "PLAIN")
"""The modes of `make test`: `tests/sources/kafka/test_security.py` has the source in all of them,
and what each says when it fails.
"""
IN_THE_CLEAR = ("PLAIN", "OAUTHBEARER")
"""Modes that send a password or a token as it is over the network; SCRAM never does."""


@pytest.mark.parametrize(
    "mode",
    [mode if mode in USUAL else pytest.param(mode, marks=pytest.mark.long) for mode in MODES],
)
async def test_records_arrive(access: Access, tmp_path: Path, mode: str) -> None:
    """Whatever way a client authenticates, every record arrives; the log complains of secrets in
    the clear alone, and holds none.
    """
    name = unique("events")
    raw = events(100)
    await create_topic(access.kafka.bootstrap, name, 2)
    await GroupTopic(access.kafka.bootstrap, name).write(raw)
    async with started(access, mode, tmp_path, name, group_id=name) as (member, upstream):
        await GroupTopic(access.kafka.bootstrap, name).settled()
        assert accepted(upstream) == dict.fromkeys(raw, 1)
        reported = [line["event"] for line in complaints(member)]
        assert [event for event in reported if not event.endswith("in the clear")] == []
        assert len(reported) == (mode in IN_THE_CLEAR)
        assert await member.stop() == 0
        said = (member.home / "log").read_text()
        assert PASSWORD not in said
        assert access.token_file.read_text().strip() not in said


async def test_a_wrong_password(access: Access, tmp_path: Path) -> None:
    """The setting that holds it, the user and the broker's words; and once the file is right,
    records flow by themselves.
    """
    access.password_file.write_text("of yesterday")
    async with started(access, "SCRAM-SHA-512 over TLS", tmp_path) as (member, _):
        line = await refused(member)
    assert line["key"] == "sources.kafka[0].security.password_file"
    assert "refuses user 'reader' with this password" in line["why"]
    assert "of yesterday" not in (member.home / "log").read_text()


async def test_a_password_that_is_put_right(access: Access, tmp_path: Path) -> None:
    """Anyone who puts the right one into the file need not restart anything."""
    name = unique("events")
    raw = events(10)
    await create_topic(access.kafka.bootstrap, name)
    stream = GroupTopic(access.kafka.bootstrap, name)
    await stream.write(raw)
    access.password_file.write_text("of yesterday")
    async with started(access, "PLAIN over TLS", tmp_path, name, group_id=name) as (
        member,
        upstream,
    ):
        await member.until(_is_down)
        access.password_file.write_text(PASSWORD)
        await stream.settled()
        assert accepted(upstream) == dict.fromkeys(raw, 1)


async def test_a_forbidden_topic(access: Access, tmp_path: Path) -> None:
    """It is there, but not for this user."""
    async with started(
        access, "SCRAM-SHA-256 over TLS", tmp_path, FORBIDDEN_TOPIC, group_id=unique("group")
    ) as (member, _):
        shown = await member.until(
            lambda shown: any(FORBIDDEN_TOPIC in warning for warning in shown.warnings)
        )
        assert await member.ready() == 200
        assert any("may not" in warning for warning in shown.warnings), shown.warnings
        assert await member.stop() == 0


async def test_a_topic_that_may_only_be_seen(access: Access, tmp_path: Path) -> None:
    """It is assigned each time, and its records may not be had: the log says the same each time,
    and so does the status.
    """
    async with started(
        access, "SCRAM-SHA-256 over TLS", tmp_path, VISIBLE_TOPIC, group_id=unique("group")
    ) as (member, _):
        shown = await member.until(_is_down)
        await member.until(partial(_is_down, but=shown.kafka[0].next_try))
        said = {
            (line["key"], line["why"])
            for line in complaints(member)
            if line["event"] == "kafka: can't read"
        }
        assert said == {("sources.kafka[0].topics", f"this user may not read {VISIBLE_TOPIC}")}
        assert shown.kafka[0].why == f"topics: this user may not read {VISIBLE_TOPIC}"
        assert await member.stop() == 0
