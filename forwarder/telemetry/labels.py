"""How a lane is called in logs, metrics and pages: recognisable by its owner, useless to anyone
else.

Invariants: a label holds at most four characters of a project key beside its prefix; the same lane
has the same label in every process; there are never more than `MAX_LABELS` lane labels in one
exposition, however many keys senders make up.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from forwarder.core.event import Lane
from forwarder.core.secrets import mask_key

UNDECODABLE: Final = "none"
"""The label of events whose lane is unknown."""

OTHER: Final = "other"
"""The label that lanes share once `MAX_LABELS` others have one of their own."""

MAX_LABELS: Final = 200
HISTORICAL: Final = "/historical"

_END: Final = re.compile(r"[/@].*")
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


class LaneNames:
    """The names that operators give to project keys, for lanes as people see them."""

    def __init__(self, names: Mapping[str, str] = MappingProxyType({})) -> None:
        """`names`: by project key."""
        self._names = {key_label(key): name for key, name in names.items()}

    def name(self, label: str) -> str:
        """The name of the lane with this label: `shop`, `shop/historical`, `shop@eu`; empty if its
        key has none.
        """
        key, rest = _split(label)
        return self._names[key] + rest if key in self._names else ""

    def show(self, label: str) -> str:
        """The lane's name, or else its label."""
        return self.name(label) or label

    def labels(self, text: str) -> tuple[str, ...]:
        """The labels that lanes with this name may have: its key can be another one at another
        destination. Of a text that is no name the text itself, which may be a label; none of an
        empty one.
        """
        if not text:
            return ()
        name, rest = _split(text)
        return tuple(
            key + rest for key, label_name in self._names.items() if label_name == name
        ) or (text,)

    def beside(self, label: str) -> dict[str, str]:
        """The member `lane_name` that stands in JSON beside a lane's label, if it has a name."""
        name = self.name(label)
        return {"lane_name": name} if name else {}


def _split(text: str) -> tuple[str, str]:
    """What stands for a key, and what follows it."""
    match = _END.search(text)
    return (text[: match.start()], match[0]) if match else (text, "")


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
