"""Sample traffic: visitors of a small shop. The demo sends it with the official Python SDK,
`forwarder generate` as raw events.

Invariants: the events are the same for the same seed, apart from uuids and times; every event
carries a uuid of its own, which identifies it at the other end. They contain what tends to break
on the way: text beyond ASCII, nested values, integers beyond 2**53, an anonymous visitor who
becomes known, an alias, a group.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol
from uuid import uuid4

from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import install_extra

PROJECT_KEY = "phc_demoShopOfTheForwarder2026"

SEED: Final = 2026

FLUSH_SECONDS = 0.5
"""How often the SDK sends what it has: some versions wait for 5 s, which is slow for a demo."""

_PAGES = ("/", "/teapots", "/bowls", "/sale", "/about", "/çay-setleri")
_PRODUCTS = (
    ("Celadon teapot", 4900),
    ("Raku bowl", 3250),
    ("Çay bardak, alti", 2400),
    ("茶碗", 11800),
    ("Glaze sample", 150),
)
_COMPANIES = (("company-7", "Müller & Söhne"), ("company-12", "Tea Room Ltd"))
_BROWSERS = (
    {
        "$os": "Mac OS X",
        "$browser": "Safari",
        "$browser_version": 18.4,
        "$device_type": "Desktop",
        "$screen_width": 1728,
    },
    {
        "$os": "Windows",
        "$browser": "Chrome",
        "$browser_version": 138,
        "$device_type": "Desktop",
        "$screen_width": 1920,
    },
    {
        "$os": "iOS",
        "$browser": "Mobile Safari",
        "$browser_version": 18.5,
        "$device_type": "Mobile",
        "$screen_width": 390,
    },
    {
        "$os": "Android",
        "$browser": "Firefox Mobile",
        "$browser_version": 140,
        "$device_type": "Mobile",
        "$screen_width": 412,
    },
)
_LIBRARY = {
    "$lib": "web",
    "$lib_version": "1.257.0",
    "$host": "shop.example.com",
    "$browser_language": "tr-TR",
    "$timezone": "Europe/Istanbul",
    "$active_feature_flags": ["new-checkout"],
}
_REFERRERS = ("https://www.example.org/search?q=teapot", "https://news.example.net/", "$direct")

ALIAS: Final = "$create_alias"
GROUP: Final = "$groupidentify"
_OWN_CALLS: Final = {
    ALIAS: lambda client, event, uuid: client.alias(
        previous_id=event.distinct_id, distinct_id=event.properties["alias"], uuid=uuid
    ),
    GROUP: lambda client, event, uuid: client.group_identify(
        group_type=event.properties["$group_type"],
        group_key=event.properties["$group_key"],
        properties=event.properties["$group_set"],
        uuid=uuid,
    ),
}
"""The calls of the SDK for events that it makes itself."""


@dataclass(frozen=True, slots=True)
class ShopEvent:
    """What one visitor does, before it has a uuid and a time."""

    event: str
    distinct_id: str
    properties: dict[str, Any]
    groups: dict[str, str] = field(default_factory=dict)

    def send(self, client: Sdk, uuid: str) -> None:
        """Have the SDK send it with this uuid."""
        own = _OWN_CALLS.get(self.event)
        if own is not None:
            own(client, self, uuid)
        else:
            client.capture(
                self.event,
                distinct_id=self.distinct_id,
                properties=self.properties,
                groups=self.groups,
                uuid=uuid,
            )


class Sdk(Protocol):
    """What the story uses of `posthog.Posthog`."""

    def capture(self, event: str, **kwargs: Any) -> object:
        """Send an event."""

    def alias(self, *, previous_id: str, distinct_id: str, uuid: str) -> object:
        """Say that two ids are one person."""

    def group_identify(
        self, *, group_type: str, group_key: str, properties: dict[str, Any], uuid: str
    ) -> object:
        """Describe a group."""

    def shutdown(self) -> None:
        """Send what is queued, and end."""


def connect(host: str, project_key: str = PROJECT_KEY) -> Sdk:
    """The official SDK, as an application would use it: only `host` points to the forwarder.
    Raises `ConfigurationError` without it.
    """
    try:
        from posthog import Posthog  # noqa: PLC0415 - an extra, needed by nothing else
    except ImportError as error:
        raise ConfigurationError(
            "the demo sends its events with the official Python SDK, which isn't installed",
            hint=install_extra("demo"),
        ) from error
    client: Sdk = Posthog(project_key, host=host, flush_interval=FLUSH_SECONDS)
    return client


def play(
    client: Sdk,
    story: Iterator[ShopEvent],
    sent: set[str],
    stop: threading.Event,
    pause: float = 0.0,
) -> None:
    """Send the story until it ends or `stop` is set, `pause` seconds apart; the uuids of what was
    sent go to `sent`. Blocks.
    """
    for event in story:
        if stop.wait(pause) if pause else stop.is_set():
            return
        uuid = str(uuid4())
        event.send(client, uuid)
        sent.add(uuid)


def story(visitors: int | None, seed: int = SEED) -> Iterator[ShopEvent]:
    """What `visitors` visitors do, one after the other; without end for None."""
    random = Random(seed)  # noqa: S311 - a story, not a secret
    yield from _companies()
    number = 0
    while visitors is None or number < visitors:
        number += 1
        yield from _Visitor(random, number).visit()


def crowd(users: int, seed: int = SEED) -> Iterator[ShopEvent]:
    """What `users` people do in sessions of their own, mixed as they come, without end. Events
    have what a browser's SDK adds.
    """
    random = Random(seed)  # noqa: S311
    yield from _companies()
    visitors = [_Visitor(random, number) for number in range(1, users + 1)]
    visits = [visitor.session() for visitor in visitors]
    while True:
        number = random.randrange(users)
        event = next(visits[number], None)
        if event is None:
            visits[number] = visitors[number].session()
        else:
            yield event


class _Visitor:
    """One person, who is anonymous until the first order."""

    def __init__(self, random: Random, number: int) -> None:
        self._random = random
        self._number = number
        self._anonymous = f"anon-{number:05d}-{random.randrange(16**8):08x}"
        self._known = {"email": f"customer{number}@example.com", "name": f"Zoë Nº {number}"}
        self._person = ""

    def session(self) -> Iterator[ShopEvent]:
        """A visit, with what a browser's SDK adds to each event of it."""
        random = self._random
        browser = {
            **random.choice(_BROWSERS),
            "$session_id": f"0199{random.getrandbits(112):028x}",
            **_LIBRARY,
        }
        for event in self.visit():
            yield ShopEvent(
                event.event,
                event.distinct_id,
                {**event.properties, **browser, **_groups(event.groups)},
            )

    def visit(self) -> Iterator[ShopEvent]:
        """Pages, a basket, and often an order."""
        random = self._random
        person = self._person or self._anonymous
        if self._person:
            yield ShopEvent("$identify", person, {"$set": self._known})
        for _ in range(random.randint(2, 5)):
            yield ShopEvent("$pageview", person, _page(random))
        basket = random.choices(_PRODUCTS, k=random.randint(1, 3))
        for name, cents in basket:
            yield ShopEvent("product added", person, {"product": name, "price_cents": cents})
        if random.random() < 0.6:
            yield from self._buy(basket)

    def _buy(self, basket: list[tuple[str, int]]) -> Iterator[ShopEvent]:
        random = self._random
        number = self._number
        person = f"customer-{self._number}"
        if not self._person:
            yield ShopEvent(
                "$identify", person, {"$anon_distinct_id": self._anonymous, "$set": self._known}
            )
            yield ShopEvent(
                "signed up",
                person,
                {"plan": random.choice(("free", "team")), "newsletter": random.random() < 0.5},
            )
            self._person = person
        order = {
            "order_id": 9_007_199_254_740_993 + number,  # beyond what a double can hold
            "items": [{"product": name, "price_cents": cents} for name, cents in basket],
            "total": sum(cents for _, cents in basket) / 100,
            "currency": "EUR",
            "gift": None,
        }
        groups = {"company": random.choice(_COMPANIES)[0]} if random.random() < 0.3 else {}
        yield ShopEvent("order placed", person, order, groups)
        if random.random() < 0.3:
            yield ShopEvent(ALIAS, person, {"alias": f"loyalty-{number:06d}"})


def _companies() -> Iterator[ShopEvent]:
    for key, name in _COMPANIES:
        yield ShopEvent(
            GROUP, key, {"$group_type": "company", "$group_key": key, "$group_set": {"name": name}}
        )


def _page(random: Random) -> dict[str, Any]:
    path = random.choice(_PAGES)
    return {
        "$current_url": f"https://shop.example.com{path}",
        "$pathname": path,
        "$referrer": random.choice(_REFERRERS),
    }


def _groups(groups: Mapping[str, str]) -> dict[str, Any]:
    """As SDKs add them to an event."""
    return {"$groups": groups} if groups else {}
