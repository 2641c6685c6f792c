"""How a lane is called in logs, metrics and pages: recognisable by its owner, useless to anyone
else.

Invariants: a label holds at most four characters of a project key beside its prefix; the same lane
has the same label in every process; there are never more than `MAX_LABELS` lane labels in one
exposition, however many keys senders make up.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Final

from forwarder.core.event import Lane
from forwarder.core.secrets import mask_key

UNDECODABLE: Final = "none"
"""The label of events whose lane is unknown."""

OTHER: Final = "other"
"""The label that lanes share once `MAX_LABELS` others have one of their own."""

MAX_LABELS: Final = 200
HISTORICAL: Final = "/historical"

_unprintable = re.compile(r"[^A-Za-z0-9_…-]")


@lru_cache(maxsize=4096)
def key_label(api_key: str) -> str:
    """A project key's label: `phc_…last4#` and six hexadecimal digits of the key's SHA-256."""
    digest = hashlib.sha256(api_key.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{_unprintable.sub('?', mask_key(api_key))}#{digest}"


def lane_label(lane: Lane) -> str:
    """The lane's label: its key's, with `/historical` appended for a historical lane."""
    label = key_label(lane.api_key)
    return label + HISTORICAL if lane.historical else label


class LaneLabels:
    """Gives at most `limit` lanes a label of their own, first come first served, for good; the
    rest are `other`.
    """

    def __init__(self, limit: int = MAX_LABELS) -> None:
        self._limit = limit
        self._own: set[Lane] = set()

    def label(self, lane: Lane | None) -> str:
        """The lane's label; None is the lane of undecodable events, which counts
        towards no limit.
        """
        if lane is None:
            return UNDECODABLE
        if lane not in self._own:
            if len(self._own) >= self._limit:
                return OTHER
            self._own.add(lane)
        return lane_label(lane)
