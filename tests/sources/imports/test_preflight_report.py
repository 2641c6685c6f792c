"""What a preflight's figures mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forwarder.core.errors import ConfigurationError
from forwarder.sources.imports.format import RefusalReason
from forwarder.sources.imports.preflight_report import SEVERITIES, FindingCode, FindingSeverity, find_all, percent, unaccepted
from tests.sources.imports.preflight_streams import few_refused, good, odd, two_files
from tests.sources.imports.preflights import DAY, NOW, Seen, event, findings, refused, report, seen

SET = {"properties": {"$set": 1}}
STOPPING = [
    "broken-files",
    "future-dates",
    "recent-dates",
    "january-1970",
    "mixed-epochs",
    "no-zone",
    "illegal-ids",
    "overwrites-persons",
    "many-refused",
]


def of(*events: Seen) -> Callable[[], Iterator[Seen]]:
    """A source of a few records."""
    return lambda: iter(events)


@pytest.mark.parametrize(
    ("code", "source", "terms", "sentence"),
    [
        ("broken-files", good, {"broken": ["a.gz: can't be read", "b.gz: neither"]}, "a.gz: can't be read, and 1 more."),
        ("future-dates", odd, {}, "1 event is later than now, 2026-05-28T20:26:40.000Z; the latest is of 2026-05-29T20:26:40.000Z."),
        ("recent-dates", odd, {"until": NOW}, "1 event is younger than 48 h, and would be sent."),
        ("january-1970", odd, {}, "1 event is of January 1970: an epoch that is wrong by 1000 or more, or a zero for no time."),
        ("mixed-epochs", odd, {}, "Times are numbers of different units: 2 in seconds, 1 in milliseconds."),
        ("no-zone", odd, {}, "1 record has a time that names no zone; it is read as UTC."),
        ("illegal-ids", odd, {}, "3 records have an id that many share ('null', 'Guest'), and would be refused."),
        ("many-refused", odd, {}, "7 of 215 records would be refused (3.256 %)."),
        ("some-refused", few_refused, {}, "1 of 201 records would be refused (0.4975 %)."),
        ("nothing-to-send", of(refused(RefusalReason.NO_ID)), {}, "Of 1 record nothing would be sent."),
        ("no-id", odd, {}, "1 record has no distinct id (0.4651 %), and would be refused."),
        ("no-time", odd, {}, "1 record has no time that can be read (0.4651 %), and would be refused."),
        ("too-large", odd, {}, "1 record has an event over upstream.max_event (1,000,000 bytes), and would be refused."),
        ("after-until", odd, {}, "2 events are of 2026-05-26T20:26:40.000Z (--until) or later, and left out."),
        ("unsorted", odd, {}, "4 events are older than one before (1.942 %), by up to 19664d 5h; 4 within a file."),
        (
            "unsorted-files",
            two_files,
            {},
            "The files aren't in the order of time: 3 events are older than one before (50 %), by up to 4d 2s.",
        ),
        ("reused-uuids", odd, {}, "1 uuid has several events that aren't the same."),
        ("duplicates", odd, {}, "1 event is there again on the same day; repeats are left out."),
        (
            "overwrites-persons",
            odd,
            {"person_properties": "set"},
            "1 event has $set and 1 $unset: that changes what the persons have today, however old the events are.",
        ),
        (
            "set-becomes-set-once",
            of(seen(event(1, **SET)), seen(event(2, **SET))),
            {},
            "2 events have $set, sent as $set_once: it only adds what the persons don't have.",
        ),
        (
            "set-is-dropped",
            odd,
            {"person_properties": "none"},
            "1 event has $set, 0 $set_once and 1 $unset, all of which are left out.",
        ),
        ("overwrites-groups", odd, {}, "1 event has $group_set: that changes what groups have today, however old the events are."),
        ("merges-persons", odd, {}, "1 event has a second id, and would merge two persons."),
        (
            "upper-case-ids",
            good,
            {"upper_case_ids": 3},
            "3 events have an id of capitals, digits and hyphens alone, and another from before Mixpanel merged.",
        ),
    ],
)
def test_each_finding(code: str, source: Callable[[], Iterator[Seen]], terms: dict[str, Any], sentence: str) -> None:
    """Every finding says what is there, with its figures, and what to do."""
    found = findings(source(), **terms)[code]
    assert found.sentence == sentence
    assert found.advice.endswith(".")
    assert found.figures
    assert found.severity is SEVERITIES[found.code]


def test_every_code_has_a_case_above() -> None:
    """The list is closed, and each of it is tested."""
    marks = test_each_finding.pytestmark
    assert {case[0] for case in marks[0].args[1]} == set(FindingCode)


def test_what_cannot_be_undone_stops() -> None:
    """Files that can't be read whole, wrong times, ids that many share, persons overwritten, and many refused records; nothing else."""
    assert [str(code) for code in FindingCode if SEVERITIES[code] is FindingSeverity.STOPS] == STOPPING


def test_a_good_source_has_no_findings() -> None:
    """Nothing to say of events that are old, in order, complete and with zones."""
    assert findings(good()) == {}
    assert findings(two_files(1, 5)) == {}


def test_what_is_just_right_is_no_finding() -> None:
    """A hundredth refused is some; an offset that was given says the zone; one unit of epochs is not mixed."""
    stream = [*(seen(event(number), record=b'{"timestamp":"2023-11-14"}') for number in range(99)), refused(RefusalReason.NO_EVENT)]
    assert set(findings(stream, zone_said=True)) == {"some-refused"}
    assert set(findings([seen(event(1), record=b'{"timestamp":1700000000}')])) == set()


def test_events_that_are_left_out_are_not_recent() -> None:
    """Young events stop an import only if `--until` lets them through."""
    young = [seen(event(1)), seen(event(2, time=NOW - DAY))]
    assert set(findings(young)) == {"after-until"}
    assert set(findings(young, until=NOW)) == {"recent-dates"}


def test_order_is_no_matter_where_it_is_sorted() -> None:
    """With `--sort` nobody needs to be told to sort."""
    assert set(findings(two_files())) == {"unsorted-files"}
    assert findings(two_files(), sort=True) == {}


def test_set_has_to_be_accepted_whatever_was_seen() -> None:
    """With `--person-properties set` the finding is there even if no event had `$set`."""
    assert set(findings(good(), person_properties="set")) == {"overwrites-persons"}


def test_those_that_stop_come_first() -> None:
    """Findings are in the order of severity, and within it always in the same."""
    found = find_all(report(odd()))
    ranks = [(list(FindingSeverity).index(each.severity), list(FindingCode).index(each.code)) for each in found]
    assert ranks == sorted(ranks)


def test_accepted_codes_no_longer_stop() -> None:
    """What remains is what stops and wasn't accepted; accepting what only warns is harmless."""
    found = find_all(report(odd()))
    stopping = ["future-dates", "january-1970", "mixed-epochs", "no-zone", "illegal-ids", "many-refused"]
    assert [each.code for each in unaccepted(found, ())] == stopping
    assert [each.code for each in unaccepted(found, ["no-zone", "unsorted", "many-refused"])] == [*stopping[:3], "illegal-ids"]
    assert unaccepted(found, STOPPING) == ()


def test_an_unknown_code_is_an_error_that_lists_the_known() -> None:
    """A misspelt code is said, with every code that there is, and those that stop first."""
    with pytest.raises(ConfigurationError) as error:
        unaccepted((), ["no-zone", "no-zones", "futur"])
    assert error.value.message == "no finding is called 'futur', 'no-zones'"
    assert all(code in error.value.hint for code in FindingCode)
    assert error.value.hint.startswith(f"The findings that stop an import are {', '.join(STOPPING)};")


@pytest.mark.parametrize(
    ("part", "shown"), [(0, "0 %"), (1e-9, "under 0.01 %"), (0.5, "50 %"), (0.01234, "1.234 %"), (0.99999999, "over 99.99 %"), (1, "100 %")]
)
def test_shares_for_a_person(part: float, shown: str) -> None:
    """A little is never rounded to none, nor almost all to all."""
    assert percent(part) == shown
