"""Made-up events that look like real ones: about 600 bytes, nested properties, text that is not
ASCII. The same seed makes the same events.

Every event's name begins with `MARKER`, so that the sink can count events without decoding them.
"""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Final

MARKER: Final = b"~ev~"
"""Once in every event, and nowhere else in a body."""

NAMES = [
    "page viewed",
    "order placed",
    "Warenkorb geöffnet",
    "search done",
    "пошук виконано",
    "invite sent",
    "Müzik çalindi",
    "登録完了",
]
PAGES = [
    "/",
    "/pricing",
    "/søk",
    "/docs/começar",
    "/catalogue/été",
    "/account/settings",
    "/товары/новые",
]
CITIES = ["Łódź", "São Paulo", "東京", "Zürich", "Київ", "Malmö", "İzmir", "Paris"]
PLANS = ["free", "team", "scale", "enterprise"]
BROWSERS = ["Firefox", "Chrome", "Safari", "Edge"]
WORDS = [
    "amber",
    "brisk",
    "cobalt",
    "dune",
    "ember",
    "fjord",
    "grove",
    "harbour",
    "iris",
    "jasper",
    "kelp",
    "lumen",
]
NAMED = ["Ayşe", "Łucja", "René", "Zoë", "Jürgen", "Ольга", "Núria"]
RARE: Final = "seldom seen"
"""The name of one event in twenty, where such are asked for."""
EVENTS_PER_PERSON: Final = 4
"""How many events in a row one person sends, on average."""


class EventMaker:
    """A stream of events of many persons, each of whom sends a few in a row."""

    def __init__(self, seed: int, beginning: datetime, *, rare: bool = False) -> None:
        """`rare`: whether some have the name `RARE`."""
        self._rare = rare
        self._random = random.Random(seed)
        self._time = beginning
        self._person = ""

    def event(self) -> dict[str, Any]:
        """The next event, with uuid and timestamp."""
        self._time += timedelta(milliseconds=self._random.randrange(1, 40))
        return {
            "event": f"{MARKER.decode()} {self._name()}",
            "distinct_id": self._distinct_id(),
            "uuid": self._uuid(),
            "timestamp": self._time.astimezone(UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "properties": self._properties(),
        }

    def _name(self) -> str:
        return RARE if self._rare and self._random.random() < 1 / 20 else self._random.choice(NAMES)

    def _distinct_id(self) -> str:
        if not self._person or self._random.random() < 1 / EVENTS_PER_PERSON:
            self._person = f"user-{self._random.getrandbits(48):012x}"
        return self._person

    def _uuid(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def _properties(self) -> dict[str, Any]:
        pick = self._random.choice
        number = self._random.randrange
        return {
            "$current_url": f"https://shop.example{pick(PAGES)}?ref={pick(WORDS)}-{number(10**6)}",
            "$browser": pick(BROWSERS),
            "$screen_width": pick([1280, 1440, 1920, 2560]),
            "city": pick(CITIES),
            "account": {
                "plan": pick(PLANS),
                "seats": number(1, 400),
                "owner": {"name": f"{pick(NAMED)} Ünal", "verified": number(2) == 1},
            },
            "items": [self._item() for _ in range(2)],
            "experiment": {
                "checkout": pick(["control", "test"]),
                "score": round(self._random.random(), 12),
            },
            "session": f"{self._random.getrandbits(64):016x}",
        }

    def _item(self) -> dict[str, Any]:
        number = self._random.randrange
        return {
            "sku": f"{self._random.choice(WORDS)}-{number(10**5)}",
            "price": number(100, 99999) / 100,
            "quantity": number(1, 9),
        }
