"""What a preflight's figures mean, as text and as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from rich.console import Console

from forwarder.core.errors import ConfigurationError
from forwarder.core.ports import Reason
from forwarder.sources.imports.preflight_report import (
    FINDINGS,
    STOPPING,
    EarlierImport,
    FindingSeverity,
    PreflightResult,
    find_all,
    percent,
    saved_report,
    unaccepted,
)
from tests.sources.imports.preflight_streams import few_refused, good, odd, two_files
from tests.sources.imports.preflights import (
    DAY,
    NOW,
    OLD,
    SECOND,
    TERMS,
    PreflightRecord,
    event,
    findings,
    preflight,
    refused,
    report,
    seen,
)
from tests.support.cases import cases

GOLDEN = Path(__file__).parent / "golden"

SET = {"properties": {"$set": 1}}
IRREVERSIBLE = [
    "broken-files",
    "cut-off-files",
    "future-dates",
    "recent-dates",
    "january-1970",
    "mixed-epochs",
    "no-zone",
    "quotes",
    "wrong-zone",
    "illegal-merges",
    "imported-before",
    "unfit-files",
    "many-refused",
]


def received(*hours: int) -> Iterator[PreflightRecord]:
    """Thirty records, each so many hours after the time that it has."""
    for number in range(30):
        time = OLD // SECOND + number * 3600
        away = hours[number * len(hours) // 30] * 3600 + 4
        record = f'{{"timestamp":"2023-11-14T22:13:20Z","received":{time + away}}}'
        yield seen(event(number), record=record.encode())


def of(*events: PreflightRecord) -> Callable[[], Iterator[PreflightRecord]]:
    """A source of a few records."""
    return lambda: iter(events)


FOUND = [
    (
        "broken-files",
        good,
        {"broken": ["a.gz: can't be read", "b.gz: neither"]},
        "a.gz: can't be read, and 1 more.",
    ),
    (
        "future-dates",
        odd,
        {},
        (
            "1 event is later than now, 2026-05-28T20:26:40.000Z; the latest is of "
            "2026-05-29T20:26:40.000Z."
        ),
    ),
    ("recent-dates", odd, {"until": NOW}, "1 event is younger than 48 h, and would be sent."),
    (
        "january-1970",
        odd,
        {},
        (
            "1 event is of January 1970: an epoch that is wrong by 1000 or more, or a zero for no "
            "time."
        ),
    ),
    (
        "mixed-epochs",
        odd,
        {},
        "Times are numbers of different units: 2 in seconds, 1 in milliseconds.",
    ),
    ("no-zone", odd, {}, "1 record has a time that names no zone; it is read as UTC."),
    (
        "wrong-zone",
        lambda: received(8),
        {},
        (
            "30 of 30 records that were compared were received 8h after the time that they have, "
            "almost to the second: it is of another zone."
        ),
    ),
    (
        "illegal-merges",
        odd,
        {},
        "3 records have a merge by an id that many share, and would be refused.",
    ),
    (
        "illegal-ids",
        of(
            *(
                seen(event(at, distinct_id=distinct_id))
                for at, distinct_id in enumerate(("null", "0", "null"))
            )
        ),
        {},
        "3 events have an id that many share ('null', '0'): to the service they are one person's.",
    ),
    ("many-refused", odd, {}, "7 of 215 records would be refused (3.256 %)."),
    ("some-refused", few_refused, {}, "1 of 201 records would be refused (0.4975 %)."),
    (
        "nothing-to-send",
        of(refused(Reason.MISSING_DISTINCT_ID)),
        {},
        "Of 1 record nothing would be sent.",
    ),
    ("no-id", odd, {}, "1 record has no distinct id (0.4651 %), and would be refused."),
    ("no-time", odd, {}, "1 record has no time that can be read (0.4651 %), and would be refused."),
    (
        "too-large",
        odd,
        {},
        "1 record has an event over upstream.max_event (1,000,000 bytes), and would be refused.",
    ),
    (
        "after-until",
        odd,
        {},
        "2 events are of 2026-05-26T20:26:40.000Z (--until) or later, and left out.",
    ),
    (
        "unsorted",
        odd,
        {},
        "4 events are older than one before (1.942 %), by up to 19664d 5h; 4 within a file.",
    ),
    (
        "unsorted-files",
        two_files,
        {},
        (
            "The files aren't in the order of time: 3 events are older than one before (50 %), by "
            "up to 4d 2s."
        ),
    ),
    ("reused-uuids", odd, {}, "1 uuid has several events that aren't the same."),
    ("duplicates", odd, {}, "1 event is there again on the same day; repeats are left out."),
    (
        "overwrites-persons",
        odd,
        {"person_properties": "history"},
        (
            "1 event has $set and 1 $unset: that changes what the persons have today, however old "
            "the events are."
        ),
    ),
    (
        "person-properties",
        odd,
        {"persons_chosen": False},
        (
            "1 event has $set, 0 $set_once and 1 $unset, and what becomes of these properties of "
            "persons was not chosen."
        ),
    ),
    (
        "history-unsorted",
        odd,
        {"person_properties": "history"},
        (
            "4 events are older than one before, and --person-properties history needs the order "
            "of time: persons would end with older values."
        ),
    ),
    (
        "newest-everywhere",
        odd,
        {"person_properties": "newest"},
        (
            "1 event has $set, 0 $set_once and 1 $unset: all of history will show the newest "
            "values of each person. They are sent as $set_once, so what a person has already "
            "stays, also from an earlier import. The index of 0 persons takes 0 B in the state "
            "folder."
        ),
    ),
    (
        "lifts-properties",
        of(seen(event(1, properties={"$os": Raw(b'"x"'), "utm_term": Raw(b'"y"'), "a": 1}))),
        {},
        (
            "1 event has properties that the service sets on the person by itself, over newer "
            "ones, too, and with $initial_…: $os, utm_term."
        ),
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
    (
        "overwrites-groups",
        odd,
        {},
        "1 event has $group_set: that changes what groups have today, however old the events are.",
    ),
    ("merges-persons", odd, {}, "1 event has a second id, and would merge two persons."),
    (
        "upper-case-ids",
        good,
        {"upper_case_ids": 3},
        (
            "3 events have an id of capitals, digits and hyphens alone, and another from before "
            "Mixpanel merged."
        ),
    ),
]
"""Each code, a stream in which it is found, the terms, and what is said."""


@cases(("code", "source", "terms", "sentence"), FOUND)
def test_each_finding(
    code: str, source: Callable[[], Iterator[PreflightRecord]], terms: dict[str, Any], sentence: str
) -> None:
    """Every finding says what is there, with its figures, and what to do."""
    finding = findings(source(), **terms)[code]
    assert finding.sentence == sentence
    assert finding.advice.endswith(".")
    assert finding.figures
    assert finding.severity is FINDINGS[finding.code][0]


def test_the_advice_on_a_wrong_zone_names_it() -> None:
    """The zones that fit, and the offset if there is one alone."""
    finding = findings(received(8))["wrong-zone"]
    assert finding.advice == "The times fit --zone America/Los_Angeles, or --time-offset -08:00."
    assert finding.figures == {"records": 30, "compared": 30, "zone": "America/Los_Angeles"}
    assert findings(received(13))["wrong-zone"].advice == "The times fit --time-offset -13:00."
    advice = findings(received(-8, -7))["wrong-zone"].advice
    assert advice == FINDINGS["wrong-zone"][1]
    assert "wrong-zone" not in findings(received(0))


def test_epochs_of_an_unknown_zone_are_said() -> None:
    """Where a vendor shifts them, no zone was given, and no record has a time of receipt."""
    epoch = seen(event(), record=b'{"timestamp":1700000000}')
    compared = seen(event(1), record=b'{"timestamp":1700000000,"received":1700000004}')
    again = seen(event(1), record=b'{"timestamp":1700000001000}')
    finding = next(
        candidate
        for candidate in find_all(preflight([epoch, again], shifts_epochs=True).report())
        if candidate.code == "zone-unknown"
    )
    assert finding.severity == "warns"
    assert finding.sentence == (
        "2 records have a number as time, which is read as UTC, and no record has a time of "
        "receipt that shows whether it is."
    )
    for stream, terms, shifts in (
        ([epoch], TERMS, False),
        ([epoch, compared], TERMS, True),
        ([epoch], replace(TERMS, zone_said=True), True),
        ([seen(event())], TERMS, True),
    ):
        assert not [*find_all(preflight(stream, terms, shifts_epochs=shifts).report())]


def test_further_earlier_imports_are_counted() -> None:
    """The one with the most events is described."""
    made = report(good())
    one = EarlierImport("imports/a", "6f1c1d5e", 7, 1, ("`--zone` was 'UTC'",))
    for others, more in ((0, ""), (1, "1 other earlier import of these files is"), (2, "2 other")):
        made.earlier = (one,) * (1 + others)
        [finding] = find_all(made)
        assert finding.code == "imported-before"
        assert ("earlier import" in finding.sentence) is bool(more)
        assert more in finding.sentence


def test_every_code_has_a_case_above() -> None:
    """The list is closed, and each of it is tested."""
    # of files: tests/sources/imports/test_recognition.py, tests/end_to_end/test_import_tables.py;
    # of state folders: test_earlier.py
    of_files = {
        "unfit-files",
        "other-format",
        "unknown-columns",
        "quotes",
        "imported-before",
        "cut-off-files",
        # of Mixpanel's clocks: below
        "zone-unknown",
    }
    assert {code for code, *_ in FOUND} == set(FINDINGS) - of_files


def test_what_cannot_be_undone_stops() -> None:
    """Files that can't be read whole, wrong times, ids that many share, persons overwritten, and
    many refused records; nothing else.
    """
    assert list(STOPPING) == IRREVERSIBLE


def test_a_good_source_has_no_findings() -> None:
    """Nothing to say of events that are old, in order, complete and with zones."""
    assert findings(good()) == {}
    assert findings(two_files(1, 5)) == {}


def test_what_is_just_right_is_no_finding() -> None:
    """A hundredth refused is some; an offset that was given says the zone; one unit of epochs is
    not mixed.
    """
    stream = [
        *(seen(event(number), record=b'{"timestamp":"2023-11-14"}') for number in range(99)),
        refused(Reason.MISSING_EVENT),
    ]
    assert set(findings(stream, zone_said=True)) == {"some-refused"}
    assert set(findings([seen(event(1), record=b'{"timestamp":1700000000}')])) == set()


def test_events_that_are_left_out_are_not_recent() -> None:
    """Young events stop an import only if `--until` lets them through."""
    young = [seen(event(1)), seen(event(2, time=NOW - DAY))]
    assert set(findings(young)) == {"after-until"}
    assert set(findings(young, until=NOW)) == {"recent-dates"}


def test_order_is_no_matter_where_it_is_sorted() -> None:
    """With `--sort` no one needs the advice to sort."""
    assert set(findings(two_files())) == {"unsorted-files"}
    assert findings(two_files(), sort=True) == {}


def test_a_choice_is_needed_only_for_properties_of_persons() -> None:
    """A source that says nothing of persons needs no choice, whatever is chosen."""
    assert findings(good(), persons_chosen=False) == {}
    for choice in ("history", "newest", "oldest", "none"):
        assert findings(good(), person_properties=choice) == {}


def test_what_has_to_be_chosen_cant_be_accepted() -> None:
    """Accepting wouldn't say what to send."""
    all_findings = find_all(report(odd(), person_properties="history", persons_chosen=False))
    left = unaccepted(all_findings, FINDINGS)
    assert [finding.code for finding in left] == ["person-properties", "history-unsorted"]


def test_those_that_stop_come_first() -> None:
    """Findings are in the order of severity, and within it always in the same."""
    all_findings = find_all(report(odd()))
    ranks = [
        (list(FindingSeverity).index(finding.severity), list(FINDINGS).index(finding.code))
        for finding in all_findings
    ]
    assert ranks == sorted(ranks)


def test_accepted_codes_no_longer_stop() -> None:
    """What remains is what stops and wasn't accepted; accepting what only warns is harmless."""
    all_findings = find_all(report(odd()))
    stopping = [
        "future-dates",
        "january-1970",
        "mixed-epochs",
        "no-zone",
        "illegal-merges",
        "many-refused",
    ]
    assert [finding.code for finding in unaccepted(all_findings, ())] == stopping
    assert [
        finding.code
        for finding in unaccepted(all_findings, ["no-zone", "unsorted", "many-refused"])
    ] == [
        *stopping[:3],
        "illegal-merges",
    ]
    assert unaccepted(all_findings, IRREVERSIBLE) == ()


def test_an_unknown_code_is_an_error_that_lists_the_known() -> None:
    """A misspelt code is said, with every code that there is, and those that stop first."""
    with pytest.raises(ConfigurationError) as error:
        unaccepted((), ["no-zone", "no-zones", "futur"])
    assert error.value.message == "no finding is called 'futur', 'no-zones'"
    assert all(code in error.value.hint for code in FINDINGS)
    assert error.value.hint.startswith(
        f"The findings that stop an import are {', '.join(IRREVERSIBLE)};"
    )


@cases(
    ("part", "shown"),
    [
        (0, "0 %"),
        (1e-9, "under 0.01 %"),
        (0.5, "50 %"),
        (0.01234, "1.234 %"),
        (0.99999999, "over 99.99 %"),
        (1, "100 %"),
    ],
)
def test_shares_for_a_person(part: float, shown: str) -> None:
    """A little is never rounded to none, nor almost all to all."""
    assert percent(part) == shown


def text(stream: Iterable[PreflightRecord], accepted: Sequence[str] = (), **terms: Any) -> str:
    """The page on a screen of 140 columns, without spaces at the ends of lines."""
    return shown_text(PreflightResult.assess(report(stream, **terms), accepted))


def shown_text(result: PreflightResult) -> str:
    """Its page."""
    console = Console(file=io.StringIO(), width=140, highlight=False)
    console.print(result.page())
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


def document(stream: Iterable[PreflightRecord], accepted: Sequence[str] = ()) -> str:
    """The JSON."""
    return PreflightResult.assess(report(stream), accepted).json()


def test_the_page_of_an_odd_source() -> None:
    """All that a person reads, word by word."""
    assert text(odd(), ["no-zone"]) == (GOLDEN / "preflight_odd.txt").read_text()


def test_the_page_of_a_good_source() -> None:
    """Nothing stops it, and nothing is said that needn't be."""
    assert text(good()) == (GOLDEN / "preflight_good.txt").read_text()


def test_how_long_it_takes() -> None:
    """At the rate that was asked for; without one no one knows."""
    assert "0s or more, at 1,000,000 events/s" in text(good(), rate=1_000_000)
    assert "as long as the service does" in text(good(), rate=1e9)


def test_the_json_of_an_odd_source() -> None:
    """All that a program gets, byte by byte."""
    assert document(odd(), ["no-zone"]) + "\n" == (GOLDEN / "preflight_odd.json").read_text()


def test_nothing_of_the_source_moves_the_terminal() -> None:
    """Brackets are text, and escapes are replaced."""
    shown = text(odd())
    assert "[red]odd[/red]" in shown
    assert "\x1b" not in shown


def test_project_keys_are_masked() -> None:
    """A key in a record is shown in neither form."""
    for shown in (text(odd()), document(odd())):
        assert "phc_0123456789" not in shown
        assert "phc_…6789" in shown


def test_long_histories_are_shown_by_month_and_by_year() -> None:
    """Each day is in the JSON; a person sees at most three dozen rows."""
    months = text(seen(event(day, time=OLD - day * DAY)) for day in range(60))
    years = text(seen(event(day, time=OLD - day * 40 * DAY)) for day in range(60))
    assert "\nmonth    events\n2023-09      15  " in months
    assert "\nyear  events\n2017       6  " in years
    parsed = json.loads(document(seen(event(day, time=OLD - day * DAY)) for day in range(60)))
    assert len(parsed["report"]["days"]) == 60


def test_many_names_end_in_other() -> None:
    """Twenty names, and the rest together."""
    shown = text(seen(event(number, event=f"name-{number:02}")) for number in range(25))
    assert "name-19" in shown
    assert "name-20" not in shown
    assert "\nother         5  " in shown


def test_estimates_say_their_scale() -> None:
    """Where only a part was looked at, a person reads about, and how large the part was."""
    made = preflight(
        (seen(event(number, distinct_id=f"id-{number}")) for number in range(300)), keys=50
    ).report()
    assert f"about {made.persons.distinct_ids.keys:,} (one in 8 sampled)" in shown_text(
        PreflightResult(made, (), ())
    )


def test_nothing_at_all_has_a_page() -> None:
    """An empty source is shown without tables."""
    assert "warns nothing-to-send: Of 0 records nothing would be sent." in text([])


def test_illegal_ids_past_the_shown_are_counted() -> None:
    """Fifty values, then how many more."""
    shown = text(
        seen(event(number, distinct_id="\u00a0" * number + "null")) for number in range(53)
    )
    assert "null' 1, others 3\n" in shown


def test_what_was_found_is_known_to_later_runs(tmp_path: Path) -> None:
    """From the file that it leaves; repeats aren't sent. Where it is gone or
    damaged, nothing is compared.
    """
    result = PreflightResult.assess(report([*odd(), seen(event(1))]), ())
    result.save(tmp_path)
    saved = saved_report(tmp_path)
    assert saved is not None
    assert (saved.records, saved.to_send) == (result.report.records, result.report.to_send)
    assert result.report.to_send == result.report.volume.events - 2
    for damaged in ('{"report": {}}', '{"report": 7}', "{"):
        (tmp_path / "preflight.json").write_text(damaged)
        assert saved_report(tmp_path) is None
    (tmp_path / "preflight.json").unlink()
    assert saved_report(tmp_path) is None
