"""The floor of the Kafka cases: a bare aiokafka loop that only counts, under uvloop. Nothing that
reads records by aiokafka can be faster.

It fetches as forwarder does by default, in pieces of 1000 records. `GET /count` answers
`{"events"}`, like the sink.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Final

import uvloop
from aiokafka import AIOKafkaConsumer

from benchmarks.server import Exchange

PIECE: Final = 1000


class Counter(Exchange):
    """One connection that asks for the count."""

    counted = 0

    def on_message_complete(self) -> None:
        """Called by httptools."""
        body = json.dumps({"events": Counter.counted}).encode()
        self.answer(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )


async def count(bootstrap: str, topic: str, group: str, port: int) -> None:
    """Read the topic from its beginning, for ever."""
    # a group that is new isn't found at once
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    await asyncio.get_running_loop().create_server(Counter, "127.0.0.1", port)
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        fetch_max_bytes=8 << 20,
        max_partition_fetch_bytes=1 << 20,
    )
    await consumer.start()
    while True:
        for records in (await consumer.getmany(timeout_ms=500, max_records=PIECE)).values():
            Counter.counted += len(records)


if __name__ == "__main__":
    uvloop.run(count(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
