"""What the events say of surveys and flags, counted: how often a survey was shown, dismissed and answered, and a flag checked.

Counted are new events, so a repeat counts once. A response is `$survey_response` or `$feature_flag_response` as it was sent; an event
without one is counted, and named under no response.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

_COUNTS: Final = """
SELECT events.api_key, marks.name, events.event, marks.value, count(*) FROM marks JOIN events ON events.id = marks.event
WHERE marks.mark = ? AND (? IS NULL OR events.api_key = ?) GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 5 DESC, 4"""


@dataclass(frozen=True, slots=True)
class ResponseCount:
    """A response, and how often it was given."""

    response: Any
    count: int


@dataclass(frozen=True, slots=True)
class SurveyUse:
    """A survey's events."""

    survey_id: str
    api_key: str
    shown: int
    dismissed: int
    sent: int
    responses: Sequence[ResponseCount]
    """The most frequent first."""


@dataclass(frozen=True, slots=True)
class FlagUse:
    """A flag's checks."""

    flag: str
    api_key: str
    calls: int
    responses: Sequence[ResponseCount]
    """The most frequent first."""


def counting(mark: str, api_key: str | None) -> tuple[str, list[object]]:
    """The question to the database that `surveys` or `flag_calls` reads the answer of."""
    return _COUNTS, [mark, api_key, api_key]


def surveys(rows: Iterable[Sequence[Any]]) -> list[SurveyUse]:
    """The surveys, by project and id."""
    found = []
    for (api_key, survey_id), group in groupby(rows, lambda row: (row[0], row[1])):
        use = list(group)
        shown, dismissed, sent = (sum(row[4] for row in use if row[2] == f"survey {what}") for what in ("shown", "dismissed", "sent"))
        found.append(SurveyUse(survey_id, api_key, shown, dismissed, sent, _responses(row for row in use if row[2] == "survey sent")))
    return found


def flag_calls(rows: Iterable[Sequence[Any]]) -> list[FlagUse]:
    """The flags that were checked, by project and key."""
    found = []
    for (api_key, flag), group in groupby(rows, lambda row: (row[0], row[1])):
        use = list(group)
        found.append(FlagUse(flag, api_key, sum(row[4] for row in use), _responses(use)))
    return found


def _responses(rows: Iterable[Sequence[Any]]) -> list[ResponseCount]:
    return [ResponseCount(json.loads(value), count) for _, _, _, value, count in rows if value != "null"]
