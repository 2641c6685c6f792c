"""What rows, entrances and worlds agree on: limits, people, and what becomes of them."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Final

SALT: Final = "salt of the promises"
SALTED: Final = "somebody salted"
"""Who is in a file of hashes."""
FORGOTTEN: Final = "somebody to forget"
AT: Final = "2024-05-04T03:02:01.500Z"
"""When events happened, unless they say otherwise: long enough ago for an import."""
SERVICES: Final = ("us", "eu")
"""Destinations that are services; the third, `own`, is an archive."""
MAX_EVENT: Final = 20_000
MAX_LINE: Final = 200_000
MAX_BODY: Final = 3_000_000
SECRET: Final = "hunter2hunter2"
STRANGER: Final = "phc_promises_of_a_stranger"
"""A project key that nothing is sent with."""
TOO_BIG: Final = "too big"
REPAIR: Final = "del(.properties.big) | .distinct_id = (.distinct_id // .properties.who)"
"""What makes an event of that name small enough, and gives it its id if that is elsewhere."""
SHARE: Final = 0.5
VERBATIM: Final = '"price":1.50,  "name":"\\u00e9","large":12345678901234567890'
"""Members as no encoder writes them."""
FOUND: Final = "waiting"
"""What is said of an event that is in a buffer."""
BIG: Final = "x" * (MAX_EVENT + 1)


def share_of(person: str) -> float:
    """Where a person is among all, as docs/how-to/rules.md says it."""
    return int.from_bytes(hashlib.sha256(person.encode()).digest()[:8], "big") / 2**64


def people(*, sampled: bool) -> str:
    """Someone who is in the sample, or who isn't."""
    numbered = (f"person-{number}" for number in range(100))
    return next(person for person in numbered if (share_of(person) < SHARE) is sampled)


def hashed(text: str) -> str:
    """What a rule makes of a text that it hashes."""
    return hmac.new(SALT.encode(), text.encode(), hashlib.sha256).hexdigest()


def moment(text: str) -> datetime:
    """A time as events have it."""
    timestamp = datetime.fromisoformat(text)
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
