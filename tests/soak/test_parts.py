"""The parts of a soak: what it sends, what its checker says, and what it tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from math import ceil
from pathlib import Path
from xml.etree import ElementTree

import msgspec

from benchmarks.bodies import API_KEY
from tests.crash.journal import PROMISED, UNKNOWN
from tests.crash.oracle import StoredLetter
from tests.soak.judge import KEPT, MEMORY, SoakArrival, growth, judge_http
from tests.soak.plan import FAULTS, MAX_EVENTS, NAMELESS, SdkPlan, planned_faults
from tests.soak.report import draw_soak, soak_text
from tests.soak.sender import AnswerEntry
from tests.soak.soak import Look, SoakOptions, SoakReport
from tests.support.cases import cases

STRANGE = "01900000-0000-7000-8000-000000000001"
BEGAN = 1_790_000_000.0
PLAN = SdkPlan(7, BEGAN)
NAMED = next(
    number
    for number, request in enumerate(PLAN.requests)
    if request.events == 10 and not request.nameless
)
NAMELESS_ONE = next(
    number
    for number, request in enumerate(PLAN.requests)
    if request.events > 1 and request.nameless
)


def entry(number: int, status: int = PROMISED) -> AnswerEntry:
    """A request that was due a second after its number."""
    return AnswerEntry(number, status, BEGAN + number, 0.01)


def arrival(event: int, kind: str = "new") -> SoakArrival:
    """An event that arrived as it should, two seconds after it was due."""
    at = datetime.fromtimestamp(BEGAN + event // MAX_EVENTS + 2, UTC).isoformat(
        timespec="milliseconds"
    )
    return SoakArrival(kind, PLAN.uuid(event), msgspec.json.encode(PLAN.expected(event)), at)


def events_of(number: int) -> list[int]:
    """The numbers of the events of a request."""
    return [number * MAX_EVENTS + index for index in range(PLAN.request(number).events)]


def test_bodies_are_valid_and_differ_in_each_event() -> None:
    """Each request has uuids of its own, however often its body comes round; the announced length
    is right; a plan can be made again.
    """
    seen: set[str] = set()
    again = SdkPlan(7, BEGAN)
    for number in (3, 3 + len(PLAN.requests)):
        request = PLAN.request(number)
        other = again.request(number)
        PLAN.prepare(request, number)
        again.prepare(other, number)
        head, _, body = bytes(request.data).partition(b"\r\n\r\n")
        decoded = json.loads(body)
        assert f"Content-Length: {len(body)}" in head.decode()
        assert decoded["api_key"] == API_KEY
        uuids = [event["uuid"] for event in decoded["batch"]]
        assert [PLAN.number(uuid) for uuid in uuids] == events_of(number)
        assert seen.isdisjoint(uuids)
        seen |= set(uuids)
        assert [{**event, "sent_at": ""} for event in decoded["batch"]] == [
            {**event, "sent_at": ""} for event in json.loads(other.body())["batch"]
        ]


def test_some_events_have_no_name() -> None:
    """One body of so many, at its end."""
    assert sum(request.nameless for request in PLAN.requests) == ceil(len(PLAN.requests) / NAMELESS)
    events = json.loads(PLAN.request(NAMELESS_ONE).body())["batch"]
    assert ["event" in event for event in events] == [True] * (len(events) - 1) + [False]
    assert [PLAN.is_nameless(event) for event in events_of(NAMELESS_ONE)] == [False] * (
        len(events) - 1
    ) + [True]
    assert PLAN.number(STRANGE) is None


@cases("seconds", [30.0, 600.0, 3600.0])
def test_faults_come_and_go_within_the_load(seconds: float) -> None:
    """Each kind in turn, none beside another, all over before the end; as many in ten minutes as
    there are kinds, and more.
    """
    faults = planned_faults(3, seconds)
    assert all(fault.begins < fault.ends < seconds for fault in faults)
    assert all(one.ends < two.begins for one, two in pairwise(faults))
    assert [fault.name for fault in faults[:2]] == [FAULTS[3][0], FAULTS[4][0]]
    assert len(faults) >= (len(FAULTS) if seconds >= 600 else 3)


def test_what_arrived_as_it_was_sent_is_right() -> None:
    """Events without a name are dead letters, a repeat is no loss, and what had no answer may be
    there or not.
    """
    named = events_of(NAMED)
    nameless = events_of(NAMELESS_ONE)
    maybe = NAMED + len(PLAN.requests)
    entries = [
        entry(NAMED),
        entry(NAMELESS_ONE),
        entry(maybe, UNKNOWN),
        entry(maybe + len(PLAN.requests), 503),
    ]
    arrived = [arrival(event) for event in (*named, *nameless[:-1], events_of(maybe)[0])] + [
        arrival(named[0], "duplicate")
    ]
    letter = StoredLetter(msgspec.json.encode({"uuid": PLAN.uuid(nameless[-1])}))
    verdict = judge_http(PLAN, entries, arrived, [letter])
    assert verdict.problems == []
    assert (verdict.sent, verdict.accepted, verdict.uncertain) == (
        30 + len(nameless),
        10 + len(nameless),
        10,
    )
    assert (verdict.distinct, verdict.repeats, verdict.dead) == (10 + len(nameless), 1, 1)
    assert {round(seconds, 3) for _, seconds in verdict.deliveries} == {2.0}


def _changed(arrived: list[SoakArrival]) -> list[SoakArrival]:
    raw = msgspec.json.decode(arrived[4].raw)
    raw["properties"]["$os"] = "Other"
    return [*arrived[:4], arrived[4]._replace(raw=msgspec.json.encode(raw)), *arrived[5:]]


@cases(
    ("spoil", "status", "problem"),
    [
        (lambda arrived: arrived[:-1], PROMISED, "was accepted and is lost"),
        (lambda arrived: arrived, 503, "came and wasn't accepted"),
        (_changed, PROMISED, "was changed"),
        (
            lambda arrived: [*arrived, arrived[0]._replace(kind="conflict")],
            PROMISED,
            "came again with other bytes",
        ),
        (
            lambda arrived: [
                *arrived,
                arrived[0]._replace(uuid="01900000-0000-7000-8000-000000000001"),
            ],
            PROMISED,
            "came and wasn't accepted",
        ),
    ],
)
def test_what_is_wrong_is_said(
    spoil: Callable[[list[SoakArrival]], list[SoakArrival]], status: int, problem: str
) -> None:
    """A loss, a change, a conflict, and what was never accepted."""
    arrived = spoil([arrival(event) for event in events_of(NAMED)])
    problems = judge_http(PLAN, [entry(NAMED, status)], arrived, []).problems
    assert [text.partition(":")[0] for text in problems][:1] == [problem]


@cases(
    "data",
    [b"{", b"[]", b'{"event": "x"}', msgspec.json.encode({"uuid": PLAN.uuid(NAMED * MAX_EVENTS)})],
)
def test_a_dead_letter_that_should_be_none_is_said(data: bytes) -> None:
    """Only events without a name are refused."""
    arrived = [arrival(event) for event in events_of(NAMED)]
    [problem] = judge_http(PLAN, [entry(NAMED)], arrived, [StoredLetter(data)]).problems
    assert problem.startswith("is a dead letter without a reason")


@cases(
    ("values", "has_grown"),
    [
        ([60e6] * 40, False),
        ([10e6] * 10 + [60e6] * 30, False),
        ([60e6 + 4e6 * number for number in range(40)], True),
        ([60e6] * 15 + [300e6] * 5 + [60e6] * 20, False),
    ],
)
def test_growth_is_what_stays(values: list[float], *, has_grown: bool) -> None:
    """The first quarter is the warm-up, and what is given back isn't growth."""
    assert growth(values, MEMORY).has_grown is has_grown


def report() -> SoakReport:
    """Of a minute that went well."""
    soak_report = SoakReport(
        SoakOptions(7, 60.0, 100.0), began=BEGAN, seconds=60.0, before=20, after=22
    )
    soak_report.faults = planned_faults(7, 60.0)
    soak_report.looks = [
        Look(float(at), 100 * at, 99 * at, 0, at % 7, 60_000_000, 40, 50_000_000)
        for at in range(1, 60)
    ]
    soak_report.answers = [
        AnswerEntry(number, PROMISED, BEGAN + number / 10, 0.002) for number in range(600)
    ]
    soak_report.http.deliveries = [(BEGAN + number / 10, 0.7) for number in range(600)]
    return soak_report


def test_a_good_report_says_so(tmp_path: Path) -> None:
    """In words, and with a picture of all figures in which the faults are shaded."""
    text = soak_text(report())
    assert text.endswith("nothing was lost, changed or miscounted, and nothing has grown")
    assert "memory: 60 MB in the second quarter, 60 MB in the last" in text
    draw_soak(report(), tmp_path / "soak.svg")
    drawn = (tmp_path / "soak.svg").read_text()
    ElementTree.fromstring(drawn)
    assert drawn.count('class="span"') == 6 * len(report().faults)


@cases(
    ("spoiled", "problem"),
    [
        (replace(report(), problems=["the daemon ended with 1"]), "the daemon ended with 1"),
        (
            replace(report(), after=20 + KEPT + 1),
            "37 descriptors were open at rest after the load, 20 before it",
        ),
        (
            replace(
                report(),
                looks=[
                    replace(look, memory=round(60e6 + 2e6 * look.at)) for look in report().looks
                ],
            ),
            "memory has grown from 103 MB to 165 MB",
        ),
        (
            replace(
                report(),
                looks=[replace(look, descriptors=40 + round(look.at)) for look in report().looks],
            ),
            "open descriptors have grown from 62 to 92",
        ),
    ],
)
def test_a_bad_report_says_what_is_bad(spoiled: SoakReport, problem: str) -> None:
    """And it fails."""
    assert spoiled.failed() == [problem]
    assert soak_text(spoiled).endswith(f"FAILED: {problem}")


def test_quarters_of_a_short_load_say_nothing() -> None:
    """What comes and goes would be a growth."""
    looks = [replace(look, descriptors=40 + 5 * round(look.at)) for look in report().looks[:4]]
    assert replace(report(), looks=looks).failed()
    assert replace(report(), looks=looks, seconds=4.0).failed() == []


def test_nothing_at_all_can_be_reported(tmp_path: Path) -> None:
    """A soak that ended before its first look."""
    empty = SoakReport(SoakOptions(7, 60.0, 100.0))
    assert "answers: none" in soak_text(empty)
    draw_soak(empty, tmp_path / "soak.svg")
    ElementTree.fromstring((tmp_path / "soak.svg").read_text())


def test_entries_without_an_answer_are_counted_apart() -> None:
    """They were accepted, or not: no one knows."""
    unknown = replace(report(), flags=[entry(1), entry(2, UNKNOWN), entry(3, 502)])
    assert "flags: 3 calls, 1 answered 200, 1 without an answer, 1 answered 502" in soak_text(
        unknown
    )
