"""Records that are no good among good ones, and keys that aren't: what is good arrives, and what
isn't is kept with where it came from.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.admin import total
from tests.support.commands import forwarder
from tests.support.kafka import Kafka, MakeTopic, Record
from tests.support.members import Members, RunningMember
from tests.support.streams import GroupTopic
from tests.support.upstream import OK, UNAUTHORIZED, Answer, Request, Upstream, plain
from tests.support.whole import KEY, accepted, event, events

BAD: Final = "phc_notYetKnown123456789"
GOOD: Final = "phc_alwaysKnown123456789"


@dataclass(frozen=True, slots=True)
class Poison:
    """A record that becomes a dead letter: for which reason, and the bytes that are kept, if not
    those of the record.
    """

    reason: str
    record: Record
    letter: bytes | None = None


POISON: Final = (
    Poison(
        "undecodable",
        Record(b"\xff\xfe\x00 no text", b"\x00\xff", [("kind", b"binary"), ("raw", b"\xfe")], 0),
    ),
    Poison("undecodable", Record(b"", b"empty", partition=0)),
    Poison("undecodable", Record(b'{"event":"cut off', b"cut", [("kind", b"cut")], 0)),
    Poison("undecodable", Record(b'"a string"', partition=0)),
    Poison(
        "invalid_token",
        Record(
            b'{"api_key":"%b","event":"e","distinct_id":"i"}' % (b"x" * 65), b"token", partition=0
        ),
    ),
    Poison("missing_distinct_id", Record(b'{"event":"nobody","properties":{}}', partition=0)),
    Poison("missing_event", Record(b'{"distinct_id":"ann"}', b"nameless", partition=0)),
    Poison(
        "too_large",
        Record(event("large", properties=b'{"p":"%b"}' % (b"x" * 5000)), b"large", partition=0),
    ),
    Poison(
        "missing_distinct_id",
        Record(
            b'[%b,{"event":"half"},%b]' % (event("before"), event("after")), b"array", partition=0
        ),
        b'{"event":"half"}',
    ),
)


async def letters(member: RunningMember) -> list[dict[str, Any]]:
    """All dead letters of a member, in the order of their places."""
    listed = await forwarder("dead-letters", "ls", "--limit", "1000", *where(member))
    assert listed.code == 0, listed.err
    return sorted(
        json.loads(listed.out)["results"],
        key=lambda letter: int(letter["coordinates"].split("/")[3]),
    )


async def content(member: RunningMember, letter: dict[str, Any]) -> bytes:
    """The bytes of a dead letter."""
    shown = await forwarder("dead-letters", "show", str(letter["number"]), *where(member))
    assert shown.code == 0, shown.err
    document = json.loads(shown.out)
    return (
        base64.b64decode(document["data_base64"])
        if "data_base64" in document
        else str(document["data"]).encode()
    )


def where(member: RunningMember) -> tuple[str, ...]:
    """Options of commands about a member."""
    return "--config", str(member.home / "forwarder.yaml"), "--output", "json"


async def test_poison_is_kept_and_holds_nothing_up(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Good records before, between and after each kind of poison arrive; poison is kept with
    place, key, headers and bytes, and is no reason not to commit.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(1))
    good = events(len(POISON) + 1, "good")
    mixed = [Record(good[0], partition=0)]
    for number, poison in enumerate(POISON, 1):
        mixed += [
            poison.record,
            Record(None, b"gone", partition=0),
            Record(good[number], partition=0),
        ]
    settings = {**stream.settings, "name": "main", "api_key": KEY}
    limits = {"max_event": "2kB"}
    async with (
        Upstream() as upstream,
        Members(tmp_path, settings, upstream={"url": upstream.url, **limits}) as members,
    ):
        places = await stream.write(mixed)
        member = await members.start("one")
        await stream.settled()
        assert accepted(upstream) == dict.fromkeys([*good, event("before"), event("after")], 1)
        shown = await member.status()
        assert total(shown, "total_dead") == len(POISON)
        assert await member.metric("forwarder_kafka_lag") == 0
        assert await member.stop() == 0
        dead_letters = await letters(member)
        offsets = [
            offset
            for (_, offset), record in zip(places, mixed, strict=True)
            if record in [poison.record for poison in POISON]
        ]
        for letter, poison, offset in zip(dead_letters, POISON, offsets, strict=True):
            assert letter["reason"] == poison.reason
            assert letter["source"] == "kafka"
            assert letter["coordinates"] == f"main/{stream.topic}/0/{offset}"
            assert letter["attributes"] == {
                "topic": stream.topic,
                "partition": 0,
                "offset": offset,
                "key": as_logged(poison.record.key),
                "headers": [[name, as_logged(value)] for name, value in poison.record.headers],
            }
        for number in (0, 1, len(POISON) - 1):
            poison = POISON[number]
            assert await content(member, dead_letters[number]) == (
                poison.record.value if poison.letter is None else poison.letter
            )


async def test_events_that_the_service_refuses_are_kept(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Events that the service answers 400 to, each among good ones, are found, kept and passed by;
    all others arrive once.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(2))
    raw = [
        event(f"poison{number}" if number % 100 == 42 else f"e{number}") for number in range(400)
    ]

    def answer(request: Request) -> Answer:
        return plain(400, "bad event") if b"poison" in request.body else OK

    settings = {**stream.settings, "api_key": KEY}
    async with (
        Upstream(answer) as upstream,
        Members(tmp_path, settings, upstream={"url": upstream.url}) as members,
    ):
        member = await members.start("one")
        await stream.write(raw)
        await stream.settled()
        shown = await member.status()
        assert {
            reason: count for lane in shown.lanes for reason, count in lane.dead_lettered.items()
        } == {"refused": 4}
        assert accepted(upstream) == {
            raw_event: 1 for raw_event in raw if b"poison" not in raw_event
        }
        assert await member.stop() == 0


def as_logged(data: bytes | None) -> object:
    """Bytes as the attributes have them."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


async def test_a_halted_lane_blocks_nothing_permanently(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """A key that the service doesn't know: its events become dead letters after `halt_after`, the
    other lane's keep flowing, the group gets to the end; once the key is known the lane continues
    with what comes when the next probe is due, and all after that.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(1))
    known = {GOOD}

    def answer(request: Request) -> Answer:
        return OK if request.api_key in known else UNAUTHORIZED

    def both(number: int) -> list[bytes]:
        return [keyed(f"{name}{number}", key) for name, key in (("bad", BAD), ("good", GOOD))]

    settings = {**stream.settings, "halt_after": "1s"}
    async with (
        Upstream(answer) as upstream,
        Members(tmp_path, settings, upstream={"url": upstream.url}) as members,
    ):
        member = await members.start("one")
        await stream.write([raw for number in range(300) for raw in both(number)])
        await stream.settled(40.0)
        shown = await member.status()
        dead = sum(lane.dead_lettered.get("lane_halted", 0) for lane in shown.lanes)
        assert dead == 300
        assert Counter(map(name_of, accepted(upstream))) == Counter(
            f"good{number}" for number in range(300)
        )
        known.add(BAD)
        later = [keyed(f"later{number}", BAD) for number in range(50)]
        for raw in later:
            await stream.write([raw])
            await stream.settled()
            if raw in accepted(upstream):
                break
        await member.until(lambda shown: not any(lane.halted for lane in shown.lanes))
        await stream.write([keyed("after", BAD), keyed("after too", GOOD)])
        await stream.settled()
        assert {"after", "after too"} <= {name_of(raw) for raw in accepted(upstream)}
        assert not any(name_of(raw).startswith("bad") for raw in accepted(upstream))
        assert await member.stop() == 0


def keyed(name: str, key: str) -> bytes:
    """A complete event with its project key."""
    return event(name).replace(b"{", b'{"api_key":"%b",' % key.encode(), 1)


def name_of(raw: bytes) -> str:
    """An event's name."""
    return str(json.loads(raw)["event"])
