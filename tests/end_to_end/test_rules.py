"""Rules in a real daemon in front of a sandbox: people who are suppressed while events come, a
kill, and books that balance.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from forwarder.storage import failpoints
from forwarder.testing.daemon import ForwarderDaemon, running_forwarder
from forwarder.testing.sandbox import running_sandbox
from tests.end_to_end.test_destinations import SHOP, SHOP_EU, several
from tests.end_to_end.test_kafka_poison import where
from tests.support.cases import cases
from tests.support.commands import forwarder
from tests.support.kafka import Kafka, MakeTopic, Record
from tests.support.members import Members
from tests.support.streams import GroupTopic
from tests.support.upstream import OK, Answer, Request, Upstream, plain
from tests.support.whole import KEY, Whole, accepted, event

PEOPLE = 10
"""Who send events, in turn."""
GONE = "person-3"
MOST = 100_000
"""Events that are sent at most until a file is read again."""


def status_of(daemon: ForwarderDaemon) -> dict[str, Any]:
    """The daemon's figures."""
    with urlopen(f"{daemon.admin_url}/status", timeout=180) as answer:
        status: dict[str, Any] = json.loads(answer.read())
    return status


class NumberedSender:
    """Sends numbered events of all people on one connection."""

    def __init__(self, daemon: ForwarderDaemon, api_key: str) -> None:
        self._connection = HTTPConnection(urlsplit(daemon.url).netloc, timeout=180)
        self._api_key = api_key
        self.sent = 0

    def send(self, rounds: int) -> None:
        """One event of each person a round."""
        for _ in range(rounds):
            batch = [
                {
                    "event": "e",
                    "distinct_id": f"person-{person}",
                    "properties": {"n": self.sent + person},
                }
                for person in range(PEOPLE)
            ]
            self._connection.request(
                "POST", "/batch/", json.dumps({"api_key": self._api_key, "batch": batch})
            )
            answer = self._connection.getresponse()
            assert (answer.status, bool(answer.read())) == (200, True)
            self.sent += PEOPLE

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def test_people_are_suppressed_while_events_come(tmp_path: Path) -> None:
    """Their file is replaced under load: nothing is lost, from then on none of their events is
    sent, also after a kill.
    """
    people = tmp_path / "people"
    people.write_text("somebody\n")
    rule = {"name": "forgotten", "match": {"distinct_id_file": str(people)}, "drop": True}
    with running_sandbox() as sandbox:
        settings = {
            "upstream": {"url": sandbox.url},
            "rules": [rule],
            "buffer": {"kind": "disk", "path": str(tmp_path / "buffer")},
        }
        with running_forwarder(settings, tmp_path) as daemon:
            sender = NumberedSender(daemon, sandbox.api_key)
            sender.send(50)
            other = tmp_path / "people.new"
            other.write_text(f"somebody\n{GONE}\n")
            other.rename(people)
            while "the ids of a rule were read again" not in daemon.log:
                assert sender.sent < MOST
                sender.send(1)
            after = sender.sent
            sender.send(50)
            sender.close()
            (lane,) = status_of(daemon)["lanes"]
            dropped = lane["dropped"]["rule:forgotten"]
            sandbox.wait_for(sender.sent - dropped)
            daemon.kill()
            daemon.start()
            (lane,) = status_of(daemon)["lanes"]
            assert lane["dropped"] == {"rule:forgotten": dropped}
            assert sum(lane["received"].values()) == sender.sent
            sender = NumberedSender(daemon, sandbox.api_key)
            sender.send(1)
            sender.close()
            assert daemon.stop() == 0
        arrived = [event["properties"]["n"] for event in sandbox.events()]
        gone = [n for n in arrived if n % PEOPLE == int(GONE[-1])]
        others = {n for n in range(after + 50 * PEOPLE) if n % PEOPLE != int(GONE[-1])}
        assert others <= set(arrived)
        assert gone
        assert max(gone) < after
        assert sandbox.call("GET", "/sandbox/conflicts")["count"] == 0


NAMING = [
    b'{"event":"own","distinct_id":"gone"}',
    b'{"event":"$identify","distinct_id":"ann","properties":{"$anon_distinct_id":"gone"}}',
    b'{"event":"$create_alias","distinct_id":"ann","properties":{"alias":"gone"}}',
    b'{"event":"spelled","distinct_id":"ann","properties":{"\\u0061lias":"\\u0067one"}}',
    b'{"event":"float","distinct_id":1e2}',
    b'{"event":"zeros","properties":{"distinct_id":1.50}}',
    b'{"event":"object","distinct_id":{"b": 1, "a": [2.0]}}',
    b'{"event":"merged","distinct_id":"ann","properties":{"alias":7e0}}',
]
OTHERS = [
    b'{"event":"kept","distinct_id":"ann","properties":{"$anon_distinct_id":"bob"}}',
    b'{"event":"kept","distinct_id":"100"}',
    b'{"event":"kept","distinct_id":"ann","properties":{"alias":null,"list":["gone"]}}',
]


@cases("large", [False, True])
async def test_people_are_suppressed_whichever_id_names_them(tmp_path: Path, large: bool) -> None:
    """Their own id, one that is merged with another, and ids that are no text; also in a body
    that the decoder process reads.
    """
    people = tmp_path / "people"
    people.write_text('gone\n100.0\n1.5\n{"a":[2.0],"b":1}\n7\n')
    rule = {"name": "forgotten", "match": {"distinct_id_file": str(people)}, "drop": True}
    sent = [*NAMING, *OTHERS, *([b'{"event":"kept","distinct_id":"ann"}'] * 3000 * large)]
    async with (
        Upstream() as upstream,
        Whole(upstream.url, rules=[rule], buffer={"ack_timeout": "5m"}) as whole,
    ):
        if large:
            await whole.take(sent)
        else:
            for raw in sent:
                await whole.take([raw])
        await whole.emptied()
        (lane,) = whole.snapshot.lanes
        assert dict(lane.dropped) == {"rule:forgotten": len(NAMING)}
    assert {name for request in upstream.requests for name in request.names} == {"kept"}


KEPT = (
    b'{"event":"order","distinct_id":"ann","uuid":"01900000-0000-7000-8000-%012d",'
    b'"timestamp":"2026-05-04T00:00:00Z","properties":{"e":1.50, "u":"\\u00e9"}}'
)


async def replay(state: Path, *args: str) -> None:
    """Have all dead letters in a directory sent again, by the command."""
    reported = await forwarder(
        "dead-letters", "replay", "--all", *args, "--path", str(state), "--yes", "--no-wait"
    )
    assert reported.code == 0, reported.err


async def test_a_replayed_event_is_ruled_as_its_senders_event_was(tmp_path: Path) -> None:
    """By the sender's key where a destination has another one, and by its source; as the same
    event at each destination, also when it is sent again after a crash.
    """
    rules = [
        {"match": {"api_key": SHOP, "source": "http"}, "remove": ".properties.email"},
        {"match": {"api_key": SHOP_EU}, "set": {".properties.by": "the other's key"}},
        {"match": {"source": "kafka"}, "set": {".properties.by": "another source"}},
    ]
    state = tmp_path / "state"
    sent = b'{"distinct_id":"ann","properties":{"n":%d,"email":"a@example.com"}}'
    async with Upstream() as us, Upstream() as eu:
        places = several(us, eu, eu={"api_keys": {SHOP: SHOP_EU}})
        letters = {"path": str(state), "max_bytes": "4MiB"}
        async with Whole("", dead_letters=letters, rules=rules, **places) as whole:
            await whole.take([sent % 1, sent % 2], SHOP)
            failpoints.arm("replay.held=eio")  # the letters can't be removed
            await replay(state, "--edit", '.event = "order"')
            await whole.until(lambda: len(us.delivered) == len(eu.delivered) == 2)
            await whole.restart(crash=True)
            failpoints.arm("")
            await whole.until(lambda: len(us.delivered) == len(eu.delivered) == 4)
            await whole.emptied()
    arrived = accepted(us)
    assert arrived == accepted(eu)
    assert [*arrived.values()] == [2, 2]
    events = [json.loads(raw) for raw in arrived]
    assert [event["properties"] for event in events] == [{"n": 1}, {"n": 2}]
    assert len({event["uuid"] for event in events}) == 2
    assert {request.api_key for request in us.requests} == {SHOP}
    assert {request.api_key for request in eu.requests} == {SHOP_EU}


@cases("status", [400, 413])
async def test_rules_are_not_applied_twice_to_refused_events(tmp_path: Path, status: int) -> None:
    """Whatever its reason: a hash stays a hash, and not one of a hash."""
    salt = tmp_path / "salt"
    salt.write_text("salt")
    rule = {"hash": {"field": ".properties.email", "salt_file": str(salt)}}
    refused = ["refused"]

    def answer(request: Request) -> Answer:
        return plain(status, "no") if set(refused) & set(request.names) else OK

    async with Upstream(answer) as upstream:
        state = tmp_path / "state"
        async with Whole(
            upstream.url, rules=[rule], dead_letters={"path": str(state), "max_bytes": "4MiB"}
        ) as whole:
            for name in ("first", "refused", "last"):
                await whole.take([event(name, properties=b'{"email":"a@example.com"}')])
            await whole.until(lambda: whole.total(lambda lane: lane.total_dead) == 1)
            await whole.until(lambda: {"first", "last"} <= set(upstream.delivered))
            refused.clear()
            await replay(state)
            await whole.until(lambda: "refused" in upstream.delivered)
    hashes = {json.loads(raw)["properties"]["email"] for raw in accepted(upstream)}
    assert hashes == {hmac.new(b"salt", b"a@example.com", hashlib.sha256).hexdigest()}


FAILING = {
    "name": "strict",
    "match": {"where": '.properties.n | startswith("a")'},
    "remove": ".properties.x",
}


async def test_a_letter_of_a_rule_says_where_its_event_came_from(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Of a record by itself, of one among several events of a record, and of a line: topic,
    partition and offset, or file and position.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(1))
    log = tmp_path / "app.log"
    lines = [json.dumps({"type": "line", "user": "bob", "n": n}) + "\n" for n in ("a", 1, "a")]
    log.write_text("".join(lines))
    logs = {"name": "app", "path": str(log), "mapping": MAPPING, "api_key": KEY}
    good, bad = [event(name, properties=b'{"n":%b}' % n) for name, n in GOOD_AND_BAD]
    records = [good, bad, b"[%b,%b]" % (good, bad), good, b'{"event":"odd","n":1}', bad]
    async with (
        Upstream() as upstream,
        Members(
            tmp_path, {**stream.settings, "api_key": KEY}, upstream={"url": upstream.url}
        ) as all_,
    ):
        offsets = [offset for _, offset in await stream.write(map(Record, records))]
        daemon = await all_.start(
            "one", rules=[FAILING], sources={"logs": [{**logs, "poll_interval": "50ms"}]}
        )
        await daemon.until(lambda now: sum(lane.total_dead for lane in now.lanes) == 5)
        listed = await forwarder("dead-letters", "ls", *where(daemon))
        assert await daemon.stop() == 0
    letters = json.loads(listed.out)["results"]
    of_records = sorted(
        (letter["attributes"]["offset"], letter["coordinates"].rpartition("/")[2], letter["reason"])
        for letter in letters
        if letter["source"] == "kafka"
    )
    assert of_records == [
        (offsets[at], str(offsets[at]), reason)
        for at, reason in (
            (1, "rule_failed"),
            (2, "rule_failed"),
            (4, "missing_distinct_id"),
            (5, "rule_failed"),
        )
    ]
    (of_line,) = [letter for letter in letters if letter["source"] == "logs"]
    assert of_line["reason"] == "rule_failed"
    assert of_line["coordinates"] == f"{log}:{len(lines[0])}"
    assert of_line["attributes"]["path"] == str(log)


GOOD_AND_BAD = (("good", b'"a"'), ("bad", b"1"))
MAPPING = {"event": ".type", "distinct_id": ".user", "properties": "{n, password}"}


async def test_records_and_lines_follow_the_rules(
    kafka: Kafka, topic: MakeTopic, tmp_path: Path
) -> None:
    """Of a real broker's records and of a followed log, each by its source: dropped, changed, and
    as they came; the books balance.
    """
    stream = GroupTopic(kafka.bootstrap, await topic(1))
    log = tmp_path / "app.log"
    said = [
        {"type": name, "user": "bob", "n": n, "password": "p"}
        for n in range(5)
        for name in ("view", "order")
    ]
    log.write_text("".join([json.dumps(line) + "\n" for line in said]))
    rules = [
        {"name": "kafka-views", "match": {"event": "view", "source": "kafka"}, "drop": True},
        {"name": "log-orders", "match": {"event": "order", "source": "logs"}, "drop": True},
        {"match": {"event": "view"}, "remove": [".properties.password"]},
    ]
    records = [KEPT % n for n in range(5)]
    noise = [Record(KEPT.replace(b"order", b"view") % (100 + n)) for n in range(7)]
    logs = [
        {
            "name": "app",
            "path": str(log),
            "mapping": MAPPING,
            "api_key": KEY,
            "poll_interval": "50ms",
        }
    ]
    source = {**stream.settings, "api_key": KEY}
    async with (
        Upstream() as upstream,
        Members(tmp_path, source, upstream={"url": upstream.url}) as members,
    ):
        await stream.write([*noise, *map(Record, records)])
        daemon = await members.start("one", rules=rules, sources={"logs": logs})
        await upstream.until(lambda: len(accepted(upstream)) == 10)
        shown = await daemon.until(
            lambda now: sum(lane.dropped.get("rule:log-orders", 0) for lane in now.lanes) == 5
        )
        assert await daemon.stop() == 0
    arrived = set(accepted(upstream))
    assert set(records) <= arrived
    lines = [json.loads(raw) for raw in arrived - set(records)]
    assert sorted(
        (event["event"], event["properties"]["n"], "password" in event["properties"])
        for event in lines
    ) == [("view", n, False) for n in range(5)]
    (lane,) = shown.lanes
    assert dict(lane.received) == {"kafka": 12, "logs": 10}
    assert dict(lane.dropped) == {"rule:kafka-views": 7, "rule:log-orders": 5}
