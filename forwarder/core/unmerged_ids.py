"""Distinct ids that the service never merges: what programs write where they have no id.

An event of such an id is ingested, and is of the one person who has it; a merge with it is passed
over (PostHog/posthog, `isDistinctIdIllegal` and `isDistinctIdUnmergeable` in
nodejs/src/common/persons/person-utils.ts, commit 3d14ff4).
"""

from __future__ import annotations

from typing import Final

LONGEST: Final = 400
"""Characters of a distinct id in the service's database."""
IN_ANY_CASE: Final = (
    *("anonymous", "guest", "distinctid", "distinct_id", "id", "not_authenticated", "email"),
    *("undefined", "true", "false"),
)
AS_WRITTEN: Final = ("[object Object]", "NaN", "None", "none", "null", "0", "undefined")
_QUOTES: Final = ("", "'", '"')
_IN_ANY_CASE: Final = frozenset(f"{q}{text}{q}" for text in IN_ANY_CASE for q in _QUOTES)
_AS_WRITTEN: Final = frozenset(f"{q}{text}{q}" for text in AS_WRITTEN for q in _QUOTES)


def is_never_merged(distinct_id: str) -> bool:
    """Whether the service merges no person by this id."""
    return (
        not distinct_id.strip()
        or distinct_id.lower() in _IN_ANY_CASE
        or distinct_id in _AS_WRITTEN
        or "\0" in distinct_id
        or len(distinct_id) > LONGEST
    )
