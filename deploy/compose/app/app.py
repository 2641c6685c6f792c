"""A sample application: visitors of a small shop, told to the analytics service by the official
SDK.

The SDK sends to forwarder because `host` says so; nothing else about it knows of forwarder.
Settings, from the environment: ANALYTICS_HOST and ANALYTICS_KEY; VISITS_PER_SECOND (2); VISITS,
after how many to stop (0: never).
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
from collections.abc import Mapping

from posthog import Posthog

PAGES = ("/", "/teapots", "/teapots/blue", "/about")
STOP = threading.Event()


def visit(client: Posthog, number: int, chance: random.Random) -> None:
    """What one visitor does: some pages, now and then an account and an order."""
    visitor = f"visitor-{number}"
    for page in chance.sample(PAGES, k=chance.randint(1, len(PAGES))):
        client.capture(
            "$pageview",
            distinct_id=visitor,
            properties={"$current_url": f"https://shop.example.com{page}"},
        )
    if chance.random() < 0.3:
        client.set(distinct_id=visitor, properties={"plan": chance.choice(["free", "paid"])})
        client.capture(
            "order placed",
            distinct_id=visitor,
            properties={"total": chance.randint(5, 200), "currency": "EUR"},
        )


def run(client: Posthog, *, pause: float, visits: int) -> int:
    """Visits, with `pause` seconds between them, until there were so many (0: without end) or
    STOP; how many there were.
    """
    chance = random.Random()  # noqa: S311 - no secret
    for number in itertools.count():
        if STOP.is_set() or (visits and number == visits):
            return number
        visit(client, number, chance)
        STOP.wait(pause)
    raise AssertionError("count has no end")


def main(environment: Mapping[str, str] = os.environ) -> None:
    """Run until SIGTERM or SIGINT, or so many visits; then send what the SDK still holds."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: STOP.set())
    client = Posthog(environment["ANALYTICS_KEY"], host=environment["ANALYTICS_HOST"])
    pause = 1 / float(environment.get("VISITS_PER_SECOND", "2"))
    visits = run(client, pause=pause, visits=int(environment.get("VISITS", "0")))
    client.shutdown()
    print(f"{visits} visits", flush=True)


if __name__ == "__main__":
    main()
