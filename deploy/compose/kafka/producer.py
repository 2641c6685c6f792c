"""A sample producer: what visitors of a small shop do, as records of a topic, each visitor's in
one partition.

Every other event has a uuid and a timestamp; the others leave that to forwarder. Settings, from
the environment: BOOTSTRAP_SERVERS and TOPIC; EVENTS_PER_SECOND (50); EVENTS, after how many to
stop (0: never).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaConnectionError

PARTITIONS = 8
VISITORS = 200
PAGES = ("/", "/teapots", "/teapots/blue", "/about")
RECONNECT = 1.0


def event(number: int, chance: random.Random) -> dict[str, Any]:
    """The next one."""
    whole: dict[str, Any] = {
        "event": "$pageview" if chance.random() < 0.9 else "order placed",
        "distinct_id": f"visitor-{chance.randrange(VISITORS)}",
        "properties": {
            "$current_url": f"https://shop.example.com{chance.choice(PAGES)}",
            "number": number,
        },
    }
    if number % 2:
        whole |= {"uuid": str(uuid.uuid4()), "timestamp": datetime.now(UTC).isoformat()}
    return whole


async def prepare(bootstrap: str, topic: str) -> None:
    """Make the topic, if it isn't there; wait for the broker as long as it takes."""
    while True:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            await client.start()
            # nothing happens if it is there
            await client.create_topics([NewTopic(topic, PARTITIONS, 1)])
        except KafkaConnectionError:
            await asyncio.sleep(RECONNECT)
        else:
            return
        finally:
            await client.close()


async def produce(bootstrap: str, topic: str, *, pause: float, events: int) -> int:
    """Events, with `pause` seconds between them, until there were so many (0: without end), or it
    is cancelled; how many there were.
    """
    await prepare(bootstrap, topic)
    chance = random.Random()  # noqa: S311 - no secret
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=True, linger_ms=20
    ) as producer:
        number = 0
        with contextlib.suppress(asyncio.CancelledError):
            for number in itertools.count():
                if events and number == events:
                    break
                told = event(number, chance)
                await producer.send(
                    topic, json.dumps(told).encode(), key=told["distinct_id"].encode()
                )
                await asyncio.sleep(pause)
        await producer.flush()
    return number


async def main(environment: Mapping[str, str] = os.environ) -> None:
    """Run until SIGTERM or SIGINT, or so many events."""
    pause = 1 / float(environment.get("EVENTS_PER_SECOND", "50"))
    bootstrap = environment["BOOTSTRAP_SERVERS"]
    topic = environment["TOPIC"]
    task = asyncio.create_task(
        produce(bootstrap, topic, pause=pause, events=int(environment.get("EVENTS", "0")))
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        print(f"{await task} events", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
