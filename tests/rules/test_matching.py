"""Which events a `match` selects, and what that looks at."""

import fnmatch
import hashlib
from collections.abc import Collection, Container, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.config.rule_settings import MatchSettings
from forwarder.core.errors import ConfigurationError
from forwarder.rules.matching import KnownIds, LaneEvents, Matcher, PeopleSample


class IdSets:
    """A file of ids that holds these."""

    def __init__(self, *ids: str) -> None:
        self.ids = set(ids)

    def open(self, path: Path, salt_file: Path | None, key: str) -> KnownIds:
        """The ids."""
        return self

    def among(self, ids: Collection[str]) -> Container[str]:
        return self.ids.intersection(ids)


def lane_events(
    *events: Mapping[str, object], api_key: str = "phc_shop", source: str = "http"
) -> LaneEvents:
    """Events as they stand in a chunk."""
    return LaneEvents(b",".join(map(msgspec.json.encode, events)), len(events), api_key, source)


def select(match: dict[str, object], events: LaneEvents, *ids: str) -> list[int]:
    """The indexes that match."""
    return list(Matcher(MatchSettings.parse(match), "rules[0].match", IdSets(*ids)).select(events))


THREE = (
    {"event": "order", "distinct_id": "a"},
    {"event": "$pageview", "distinct_id": "b"},
    {"event": "orders done", "distinct_id": "c"},
)


@pytest.mark.parametrize(
    ("match", "selected"),
    [
        ({}, [0, 1, 2]),
        ({"event": "order"}, [0]),
        ({"event": "order*"}, [0, 2]),
        ({"event": ["$page?iew", "order"]}, [0, 1]),
        ({"event": r"order\*"}, []),
        ({"event": "*d*r*e*"}, [2]),
        ({"event": "$autocapture, order"}, []),
        ({"api_key": "phc_shop"}, [0, 1, 2]),
        ({"api_key": ["phc_other"]}, []),
        ({"source": ["http", "kafka"]}, [0, 1, 2]),
        ({"source": "logs"}, []),
        ({"where": '.distinct_id == "c"', "event": "order*"}, [2]),
        ({"where": ".event", "api_key": "phc_other"}, []),
        ({"distinct_id_file": "/ids"}, [1, 2]),
    ],
)
def test_an_event_matches_if_all_conditions_hold(
    match: dict[str, object], selected: list[int]
) -> None:
    """Names with globs, project keys, sources, conditions and files of ids."""
    assert select(match, lane_events(*THREE), "b", "c") == selected


def test_ids_are_those_that_the_service_stores() -> None:
    """Wherever an id stands, whatever its type, cut as the service cuts it."""
    events = lane_events(
        {"event": "e", "distinct_id": 17},
        {"event": "e", "$distinct_id": "x"},
        {"event": "e", "distinct_id": " ", "properties": {"distinct_id": "y"}},
        {"event": "e", "distinct_id": "z" * 300},
    )
    assert select({"distinct_id_file": "/ids"}, events, "17", "x", "y", "z" * 200) == [0, 1, 2, 3]


def test_second_ids_are_those_of_the_events_that_are_left() -> None:
    """Whatever else a request holds: properties that are no object, and events that went before."""
    events = lane_events(
        {"event": "a", "distinct_id": "p", "properties": {"alias": "x"}},
        {"event": "b", "distinct_id": "p", "properties": None},
        {"event": "c", "distinct_id": "p", "properties": {"$anon_distinct_id": "x"}},
        {"event": "d", "distinct_id": "p"},
    )
    assert select({"distinct_id_file": "/ids"}, events, "x") == [0, 2]
    events.keep([1, 2, 3])
    assert select({"distinct_id_file": "/ids"}, events, "x") == [1]
    odd = lane_events(
        *[{"event": "e", "properties": properties} for properties in ([1], {"alias": "x"})]
    )
    assert select({"distinct_id_file": "/ids"}, odd, "x") == [1]


def test_a_condition_that_fails_is_reported_and_does_not_match() -> None:
    """The others are still looked at."""
    failed: dict[int, str] = {}
    events = lane_events(
        {"event": "e", "n": {}}, {"event": "e", "n": "text"}, {"event": "e", "n": [1]}
    )
    matcher = Matcher(
        MatchSettings.parse({"where": '.n | startswith("t")'}), "rules[0].match", IdSets()
    )
    assert list(matcher.select(events, failed=failed.__setitem__)) == [1]
    assert list(failed) == [0, 2]
    assert "startswith" in failed[0]


def test_only_some_events_are_looked_at_if_asked() -> None:
    """Routes ask for the events that no earlier route matched."""
    matcher = Matcher(MatchSettings.parse({"event": "order*"}), "routes[0].match", IdSets())
    assert list(matcher.select(lane_events(*THREE), among=[1, 2])) == [2]


@pytest.mark.parametrize("where", ["env.HOME", "repeat(.)", "input", "def f: f; f", ".a |"])
def test_a_condition_that_may_not_end_or_leaves_the_event_is_rejected(where: str) -> None:
    """The restrictions of mappings hold here."""
    with pytest.raises(ConfigurationError, match=r"rules\[0\]\.match\.where"):
        Matcher(MatchSettings(where=where), "rules[0].match", IdSets())


@given(st.text("ab*?[]!-.", max_size=12), st.text("ab[]!-.\n", max_size=20))
def test_globs_are_those_of_shells_without_brackets(glob: str, name: str) -> None:
    """Against fnmatch, in which brackets are given a meaning that they don't have here."""
    expected = fnmatch.fnmatchcase(name, glob.replace("[", "[[]"))
    assert select({"event": [glob or "-"]}, lane_events({"event": name})) == (
        [0] if (expected if glob else name == "-") else []
    )


def test_many_stars_take_linear_time() -> None:
    """A name that nearly matches is given up, not tried in all ways."""
    assert not select({"event": "*a" * 40 + "*b"}, lane_events({"event": "a" * 200_000}))


def test_a_sample_is_the_documented_hash() -> None:
    """The first eight bytes of SHA-256 as a number, below rate times 2**64."""
    ids = [f"person-{number}" for number in range(2000)]
    chosen = {distinct_id for distinct_id in ids if distinct_id in PeopleSample(0.1)}
    assert chosen == {
        distinct_id
        for distinct_id in ids
        if int(hashlib.sha256(distinct_id.encode()).hexdigest()[:16], 16) / 2**64 < 0.1
    }
    assert 150 < len(chosen) < 250
    assert chosen <= {distinct_id for distinct_id in ids if distinct_id in PeopleSample(0.2)}
    assert all(distinct_id in PeopleSample(1.0) for distinct_id in ids)
    assert not any(distinct_id in PeopleSample(0.0) for distinct_id in ids)
