"""An application with `posthog`, the Python SDK: everything that it can send, and then page after
page being read.

    python program.py --host http://127.0.0.1:8320 --key phc_… --count 1000 --journal sent.jsonl
    [--mode threads]

Each event that the SDK is about to send is a line of the journal: its uuid, name and distinct_id.
With `--parts 3` it stops after a third and after two thirds, says so on its output, and continues
when it is reported to by a line of input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from posthog import AsyncPosthog, Posthog, identify_context, new_context, tag

FLAG = "new-checkout"
MODES: dict[str, dict[str, Any]] = {
    "sync": {"sync_mode": True},
    "threads": {},
    "gzip": {"gzip": True},
    "historical": {"historical_migration": True, "gzip": True},
    "v1": {"capture_mode": "v1", "capture_compression": "none"},
    "v1-gzip": {"capture_mode": "v1", "capture_compression": "gzip"},
    "v1-deflate": {"capture_mode": "v1", "capture_compression": "deflate"},
    "v1-zstd": {"capture_mode": "v1", "capture_compression": "zstd"},
    "asyncio": {},
    "asyncio-v1": {"capture_mode": "v1", "capture_compression": "gzip"},
}


class Journal:
    """What the SDK was about to send, one line an event."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.count = 0

    def note(self, message: dict[str, Any]) -> dict[str, Any]:
        """Called by the SDK for each event; changes nothing."""
        line = {
            "uuid": message["uuid"],
            "event": message["event"],
            "distinct_id": message["distinct_id"],
        }
        self._file.write(json.dumps(line) + "\n")
        self.count += 1
        return message


def tell_people(client: Posthog | AsyncPosthog) -> None:
    """People: what is known of them, and that two of them are one."""
    client.set(distinct_id="ann", properties={"plan": "pro", "email": "ann@example.com"})
    client.set_once(distinct_id="ann", properties={"first_seen": "2026-01-01"})
    client.set_once(distinct_id="ann", properties={"first_seen": "2026-02-02"})
    client.capture("$identify", distinct_id="ann", properties={"$set": {"name": "Ann Müller 茶"}})
    client.capture("cart opened", distinct_id="anon-7")
    client.alias(previous_id="anon-7", distinct_id="bea")


def tell_groups(client: Posthog | AsyncPosthog) -> None:
    """A company that is described, and one that is only mentioned."""
    client.group_identify(
        "company",
        "acme",
        {"name": "Acme", "seats": 5, "since": "2026-01-01T00:00:00Z"},
        distinct_id="ann",
    )
    client.capture(
        "invoice paid", distinct_id="ann", groups={"company": "acme"}, properties={"amount": 12.5}
    )
    client.capture("invoice lost", distinct_id="ann", groups={"company": "ghost"})


def tell_views(client: Posthog | AsyncPosthog) -> None:
    """Pages, screens, surveys, flags by name, and someone who stays unknown."""
    client.capture(
        "$pageview",
        distinct_id="ann",
        properties={"$current_url": "https://shop.example.com/tea?q=1#top"},
    )
    client.capture("$screen", distinct_id="ann", properties={"$screen_name": "Checkout"})
    for event in ("survey shown", "survey dismissed"):
        client.capture(event, distinct_id="ann", properties={"$survey_id": "s-1"})
    client.capture(
        "survey sent",
        distinct_id="ann",
        properties={"$survey_id": "s-1", "$survey_response": "tea"},
    )
    client.capture(
        "$feature_flag_called",
        distinct_id="ann",
        properties={"$feature_flag": "old-banner", "$feature_flag_response": "red"},
    )
    client.capture("banner seen", distinct_id="ann", properties={"$feature/old-banner": "red"})
    client.capture(
        "page glimpsed", distinct_id="passer-by", properties={"$process_person_profile": False}
    )
    client.capture("page glimpsed by nobody")


def tell_more(client: Posthog | AsyncPosthog) -> None:
    """An event with its own time and uuid, an exception, one of a language model, and one with
    what surrounds it.
    """
    timestamp = "2026-03-01T12:00:00+02:00"
    uuid = "018f0000-0000-7000-8000-000000000001"
    client.capture(
        "order imported", distinct_id="ann", timestamp=timestamp, uuid=uuid, disable_geoip=False
    )
    try:
        int("no tea left")
    except ValueError as error:
        client.capture_exception(error, distinct_id="ann", properties={"shelf": 3})
    client.capture(
        "$ai_generation",
        distinct_id="ann",
        properties={"$ai_model": "small", "$ai_trace_id": "t-1"},
    )
    with new_context():
        identify_context("ann")
        tag("shop", "Köln")
        client.capture(
            "tea chosen", properties={"nested": {"list": [1, None, {"deep": [True]}]}, "big": 2**60}
        )


def read_pages(client: Posthog | AsyncPosthog, first: int, until: int) -> None:
    """Events from one number up to another."""
    for number in range(first, until):
        client.capture(
            "page read",
            distinct_id=f"reader-{number % 50}",
            properties={"n": number, "text": "Zoë 茶碗 \u2028"},
        )


def reported(client: Posthog, part: int) -> dict[str, Any]:
    """What the flag is, from the service and from the definitions available, and how
    long that took.
    """
    began = time.monotonic()
    flags = client.evaluate_flags(f"asker-{part}", flag_keys=[FLAG])
    enabled = flags.is_enabled(FLAG)
    return {
        "seconds": time.monotonic() - began,
        "enabled": enabled,
        "keys": sorted(flags.keys),
        "definitions": sorted(client.feature_flags_by_key or {}),
    }


def with_threads(args: argparse.Namespace, journal: Journal) -> None:
    """The usual client: it queues, and threads send; or it sends at once (`sync`)."""
    options = {
        "host": args.host,
        "before_send": journal.note,
        "on_error": complain,
        "poll_interval": 1,
        **MODES[args.mode],
    }
    client = Posthog(args.key, **options, **key_of(args))
    for part in range(1, args.parts + 1):
        if args.secret_key:
            client.load_feature_flags()  # type: ignore[no-untyped-call]
        flags = client.evaluate_flags("ann")
        flags.is_enabled(FLAG)
        client.capture("checkout started", distinct_id="ann", flags=flags)
        for tell in (tell_people, tell_groups, tell_views, tell_more) if part == 1 else ():
            tell(client)
        read_pages(client, journal.count, args.count * part // args.parts)
        client.flush()
        pause(part, args.parts, reported(client, part))
    client.capture_ai(
        "$ai_trace", distinct_id="ann", properties={"$ai_trace_id": "t-1", "$ai_input_state": "…"}
    )
    client.shutdown()


async def with_asyncio(args: argparse.Namespace, journal: Journal) -> None:
    """The client for asyncio: tasks send."""
    client = AsyncPosthog(
        args.key, host=args.host, before_send=journal.note, on_error=complain, **MODES[args.mode]
    )
    async with client:
        flags = await client.evaluate_flags("ann")
        flags.is_enabled(FLAG)
        client.capture("checkout started", distinct_id="ann", flags=flags)
        for tell in (tell_people, tell_groups, tell_views, tell_more):
            tell(client)
        await client.capture_immediate(
            "order placed", distinct_id="ann", properties={"waited": True}
        )
        read_pages(client, 0, args.count)


def key_of(args: argparse.Namespace) -> dict[str, Any]:
    """A secret key makes the SDK fetch flag definitions and decide by itself."""
    return {"secret_key": args.secret_key} if args.secret_key else {}


def pause(part: int, parts: int, answers: dict[str, Any]) -> None:
    """Say that a part is done, and wait for a word."""
    print(json.dumps({"part": part, **answers}), flush=True)
    if part < parts:
        sys.stdin.readline()


def complain(error: Exception, batch: Any) -> None:
    """The SDK gave events up."""
    print(f"given up: {len(batch or ())} events: {error!r}", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None, run: Callable[..., Any] = asyncio.run) -> None:
    """Read the command line, and send."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--host", "--key", "--journal"):
        parser.add_argument(name, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--mode", choices=MODES, default="threads")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--secret-key", default="")
    args = parser.parse_args(arguments)
    with Path(args.journal).open("w") as file:
        journal = Journal(file)
        if args.mode.startswith("asyncio"):
            run(with_asyncio(args, journal))
        else:
            with_threads(args, journal)


if __name__ == "__main__":
    main()
