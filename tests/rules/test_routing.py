"""Routes, against a plain model: the first that matches decides; samples are by person; the
default is the first destination.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from forwarder.config.rule_settings import RouteSettings
from forwarder.core.event import Lane
from forwarder.rules.matching import PeopleSample
from forwarder.rules.routing import EventRoutes

NAMES = ("us", "eu", "lab")
KEYS = ("phc_one", "phc_two")
SOURCES = ("http", "kafka")
EVENTS = ("order paid", "order", "page", "$pageview")
GLOBS = ("order*", "page", "*", "$*")

targets = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)
matches = st.fixed_dictionaries(
    {},
    optional={
        "event": st.lists(st.sampled_from(GLOBS), min_size=1, max_size=2),
        "api_key": st.lists(st.sampled_from(KEYS), min_size=1, max_size=2),
        "source": st.lists(st.sampled_from(SOURCES), min_size=1, max_size=2),
        "where": st.just(".properties.paid == true"),
    },
)
routes = st.lists(st.tuples(matches, targets, st.none() | st.floats(0.1, 0.9)), max_size=4)
events = st.lists(
    st.tuples(st.sampled_from(EVENTS), st.integers(0, 20), st.booleans()), min_size=1, max_size=8
)

Written = list[tuple[dict[str, Any], list[str], float | None]]


def model(
    written: Written, key: str, source: str, name: str, person: str, *, paid: bool
) -> list[str]:
    """Where the event goes."""
    for match, to, sample in written:
        if "event" in match and not any(fnmatchcase(name, glob) for glob in match["event"]):
            continue
        if key not in match.get("api_key", [key]) or source not in match.get("source", [source]):
            continue
        if "where" in match and not paid:
            continue
        return to if sample is None or person in PeopleSample(sample) else to[:1]
    return ["us"]


@given(routes, st.sampled_from(KEYS), st.sampled_from(SOURCES), events)
def test_events_go_where_the_model_says(
    written: Written, key: str, source: str, sent: list[tuple[str, int, bool]]
) -> None:
    """For all events of a request together; and a decision for a whole lane is the
    same for each.
    """
    settings = [
        RouteSettings.parse(
            {
                "match": match,
                "to": to
                if sample is None
                else [to[0], *({destination: {"sample": sample}} for destination in to[1:])],
            }
        )
        for match, to, sample in written
    ]
    table = EventRoutes(settings, NAMES)
    lane = Lane(key)
    raw = [
        json.dumps(
            {"event": name, "distinct_id": f"p{person}", "properties": {"paid": paid}}
        ).encode()
        for name, person, paid in sent
    ]
    decisions = [
        [NAMES[number] for number in numbers]
        for numbers in table.of_events(lane, source, b",".join(raw), len(raw))
    ]
    assert decisions == [
        model(written, key, source, name, f"p{person}", paid=paid) for name, person, paid in sent
    ]
    whole = table.whole(lane, source)
    assert whole is None or all(
        [NAMES[number] for number in whole] == decision for decision in decisions
    )


def test_unreadable_events_are_routed_by_key_and_source() -> None:
    """A dead letter at receipt has no name that a glob could match."""
    table = EventRoutes(
        [
            RouteSettings.parse({"match": {"event": "*"}, "to": "eu"}),
            RouteSettings.parse({"match": {"api_key": "phc_one"}, "to": ["us", "lab"]}),
        ],
        NAMES,
    )
    for data in (b"17", b'{"distinct_id":"x"}', b'{"event":7}'):
        assert table.of_events(Lane("phc_one"), "http", data, 1) == [(0, 2)]
        assert table.of_events(Lane("phc_two"), "http", data, 1) == [(0,)]
