"""The demo's sample traffic: visitors of a small shop, sent with the official Python SDK.

Invariants: the story is the same for the same seed, apart from its uuids; every event carries a uuid of its own, which
identifies it at the other end. It contains what tends to break on the way: text beyond ASCII, nested values, integers beyond 2**53,
an anonymous visitor who becomes known, an alias, a group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Protocol
from uuid import uuid4

from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import install_extra

PROJECT_KEY = "phc_demoShopOfTheForwarder2026"

FLUSH_SECONDS = 0.5
"""How often the SDK sends what it has: some versions wait for 5 s, which is slow for a demo."""

_PAGES = ("/", "/teapots", "/bowls", "/sale", "/about", "/çay-setleri")
_PRODUCTS = (("Celadon teapot", 4900), ("Raku bowl", 3250), ("Çay bardak, alti", 2400), ("茶碗", 11800), ("Glaze sample", 150))
_COMPANIES = (("company-7", "Müller & Söhne"), ("company-12", "Tea Room Ltd"))
_REFERRERS = ("https://www.example.org/search?q=teapot", "https://news.example.net/", "$direct")

Call = Callable[["Sdk", str], object]
"""One call of the SDK, given the uuid that its event is to carry."""


class Sdk(Protocol):
    """What the story uses of `posthog.Posthog`."""

    def capture(self, event: str, **kwargs: Any) -> object:
        """Send an event."""

    def alias(self, *, previous_id: str, distinct_id: str, uuid: str) -> object:
        """Say that two ids are one person."""

    def group_identify(self, *, group_type: str, group_key: str, properties: dict[str, Any], uuid: str) -> object:
        """Describe a group."""

    def shutdown(self) -> None:
        """Send what is queued, and end."""


def connect(host: str, project_key: str = PROJECT_KEY) -> Sdk:
    """The official SDK, as an application would use it: only `host` points to the forwarder. Raises `ConfigurationError` without it."""
    try:
        from posthog import Posthog  # noqa: PLC0415 - an extra, needed by nothing else
    except ImportError as error:
        raise ConfigurationError(
            "the demo sends its events with the official Python SDK, which isn't installed",
            hint=install_extra("demo"),
        ) from error
    client: Sdk = Posthog(project_key, host=host, flush_interval=FLUSH_SECONDS)
    return client


def play(client: Sdk, story: Iterator[Call], sent: set[str], stop: threading.Event, pause: float = 0.0) -> None:
    """Make the story's calls until it ends or `stop` is set, `pause` seconds apart; the uuids of what was sent go to `sent`. Blocks."""
    for call in story:
        if stop.wait(pause) if pause else stop.is_set():
            return
        uuid = str(uuid4())
        call(client, uuid)
        sent.add(uuid)


def story(visitors: int | None, seed: int = 2026) -> Iterator[Call]:
    """What `visitors` visitors do, one after the other; without end for None."""
    random = Random(seed)  # noqa: S311 - a story, not a secret
    for key, name in _COMPANIES:
        yield _group(key, name)
    number = 0
    while visitors is None or number < visitors:
        number += 1
        yield from _visit(random, number)


def _visit(random: Random, number: int) -> Iterator[Call]:
    anonymous = f"anon-{number:05d}-{random.randrange(16**8):08x}"
    for _ in range(random.randint(2, 5)):
        yield _capture("$pageview", anonymous, _page(random))
    basket = random.choices(_PRODUCTS, k=random.randint(1, 3))
    for name, cents in basket:
        yield _capture("product added", anonymous, {"product": name, "price_cents": cents})
    if random.random() < 0.6:
        yield from _buy(random, number, anonymous, basket)


def _buy(random: Random, number: int, anonymous: str, basket: list[tuple[str, int]]) -> Iterator[Call]:
    person = f"customer-{number}"
    known = {"email": f"customer{number}@example.com", "name": f"Zoë Nº {number}"}
    yield _capture("$identify", person, {"$anon_distinct_id": anonymous, "$set": known})
    order = {
        "order_id": 9_007_199_254_740_993 + number,  # beyond what a double can hold
        "items": [{"product": name, "price_cents": cents} for name, cents in basket],
        "total": sum(cents for _, cents in basket) / 100,
        "currency": "EUR",
        "gift": None,
    }
    groups = {"company": random.choice(_COMPANIES)[0]} if random.random() < 0.3 else {}
    yield _capture("order placed", person, order, groups)
    if random.random() < 0.3:
        yield _alias(person, f"loyalty-{number:06d}")


def _page(random: Random) -> dict[str, Any]:
    path = random.choice(_PAGES)
    return {"$current_url": f"https://shop.example.com{path}", "$pathname": path, "$referrer": random.choice(_REFERRERS)}


def _capture(event: str, person: str, properties: dict[str, Any], groups: dict[str, str] | None = None) -> Call:
    return lambda client, uuid: client.capture(event, distinct_id=person, properties=properties, groups=groups or {}, uuid=uuid)


def _alias(person: str, other: str) -> Call:
    return lambda client, uuid: client.alias(previous_id=person, distinct_id=other, uuid=uuid)


def _group(key: str, name: str) -> Call:
    return lambda client, uuid: client.group_identify(group_type="company", group_key=key, properties={"name": name}, uuid=uuid)
