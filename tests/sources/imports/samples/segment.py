"""A log of calls as Segment writes it to S3: visits of a site and an app, calls of servers, and
the odd ones that every log has.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from forwarder.core.ports import Reason

FIRST = datetime(2024, 2, 28, 21, 0, 0, 123_000, tzinfo=UTC)
PAGES = [
    ("/", "Home"),
    ("/pricing", "Pricing"),
    ("/docs/über-uns", "Über uns"),
    ("/blog?tag=a&b", "Blog — \u65e5\u672c"),
    ("/\U0001f680", ""),
]
BROWSERS = [
    (
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/537.36 (KHTML, like Gecko) "
        "Chrome/122.0.0.0 Safari/537.36"
    ),
    (
        "Mozilla/5.0 (iPhone; CPU iPhone OS 17_3 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like "
        "Gecko) Version/17.3 Safari/604.1"
    ),
]
Record = dict[str, Any]
Change = Callable[[Record], tuple[bytes, Reason | None]]


def sample(count: int = 2_400, seed: int = 1) -> list[tuple[bytes, Reason | None]]:
    """Records in the order of their time, and why each is refused (None: it becomes an event). The
    same for the same seed.
    """
    draw = random.Random(seed)
    made: list[tuple[bytes, Reason | None]] = []
    odd = _odd_records()
    for number, record in enumerate(_calls(draw)):
        if len(made) >= count:
            break
        made.append((_line(record), None))
        if number % 50 == 49:
            made.append(odd[number // 50 % len(odd)](record))
    return made[:count]


def _line(record: Record) -> bytes:
    return json.dumps(
        record, ensure_ascii=len(record["messageId"]) % 2 == 0, separators=(",", ":")
    ).encode()


def _calls(draw: random.Random) -> Iterator[Record]:
    time = FIRST
    while True:
        person = draw.randrange(1, 400)
        anonymous = str(UUID(int=draw.getrandbits(128), version=4))
        visit = _app_visit if draw.random() < 0.3 else _site_visit
        for call in visit(draw, person):
            time += timedelta(milliseconds=draw.randrange(20, 60_000))
            yield _common(draw, call, time, anonymous)


def _site_visit(draw: random.Random, person: int) -> Iterator[Record]:
    context = {
        "ip": f"203.0.113.{person % 250}",
        "userAgent": draw.choice(BROWSERS),
        "library": {"name": "analytics.js", "version": "next-1.66.0"},
        "locale": "de-DE",
        "timezone": "Europe/Berlin",
        "campaign": {"name": "spring", "source": "newsletter"},
        "userAgentData": {
            "brands": [{"brand": "Chromium", "version": "122"}],
            "mobile": False,
            "platform": "macOS",
        },
    }
    for _ in range(draw.randrange(1, 5)):
        path, title = draw.choice(PAGES)
        page = {
            "path": path,
            "referrer": "",
            "search": "",
            "title": title,
            "url": f"https://example.com{path}",
        }
        name = title or None
        yield {
            "type": "page",
            "name": name,
            "category": None,
            "properties": {**page, "name": name},
            "context": {**context, "page": page},
        }
        if draw.random() < 0.6:
            yield {
                "type": "track",
                "event": "Button Clicked",
                "properties": {"label": title, "nested": {"a": [1, 1.50]}},
                "context": context,
            }
    if draw.random() < 0.5:
        yield {
            "type": "identify",
            "userId": f"user-{person}",
            "traits": _traits(person),
            "context": context,
        }
        yield {
            "type": "track",
            "userId": f"user-{person}",
            "event": "Order Completed",
            "properties": _order(draw),
            "context": context,
        }
    if draw.random() < 0.2:
        yield {
            "type": "group",
            "userId": f"user-{person}",
            "groupId": f"company-{person % 9}",
            "traits": {"plan": "pro"},
            "context": context,
        }


def _app_visit(draw: random.Random, person: int) -> Iterator[Record]:
    context = {
        "app": {"name": "Shop", "version": "4.2.0", "build": "42", "namespace": "com.example.shop"},
        "device": {
            "id": f"{person:08X}-0000",
            "manufacturer": "Apple",
            "model": "iPhone15,2",
            "name": "Zoë's",
            "type": "ios",
        },
        "ip": "2001:db8::17",
        "network": {"bluetooth": False, "carrier": "T", "cellular": True, "wifi": False},
        "screen": {"density": 3, "height": 844, "width": 390},
        "traits": {"plan": "pro"},
        "library": {"name": "analytics-swift", "version": "1.5.4"},
        "os": {"name": "iOS", "version": "17.3"},
    }
    for name in draw.sample(["Start", "Settings", "Cart"], 2):
        yield {
            "type": "screen",
            "userId": f"user-{person}",
            "name": name,
            "properties": {"depth": 2},
            "context": context,
        }
    if draw.random() < 0.2:
        yield {
            "type": "alias",
            "userId": f"user-{person}",
            "previousId": f"old-{person}",
            "context": context,
        }


def _traits(person: int) -> Record:
    return {
        "email": f"user{person}@example.com",
        "age": 20 + person % 50,
        "balance": 12_345_678_901_234_567_890,
        "tags": ["a", None, True],
    }


def _order(draw: random.Random) -> Record:
    return {
        "order_id": str(draw.getrandbits(40)),
        "total": draw.randrange(10_000) / 100,
        "currency": "EUR",
        "products": [{"sku": "x-1"}] * 3,
    }


def _common(draw: random.Random, call: Record, time: datetime, anonymous: str) -> Record:
    """What Segment's own delivery puts around each call."""
    written = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "anonymousId": anonymous,
        "channel": "client",
        "_metadata": {"bundled": ["Segment.io"], "unbundled": [], "nodeVersion": None},
        "integrations": {"All": True},
        "messageId": f"ajs-next-{draw.getrandbits(64):x}",
        "originalTimestamp": (time - timedelta(seconds=3))
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z"),
        "projectId": "pRoJeCt",
        "receivedAt": written,
        "sentAt": written,
        "timestamp": written,
        "userId": None,
        "version": 2,
        "writeKey": "wRiTeKeY",
        **call,
    }


def _odd_records() -> list[Change]:
    """Functions that make an odd record of a usual one."""

    def changed(why: Reason | None, *left_out: str, **change: Any) -> Change:
        def change_of(record: Record) -> tuple[bytes, Reason | None]:
            odd = {**record, "messageId": f"{record['messageId']}-odd", **change}
            return json.dumps(
                {name: value for name, value in odd.items() if name not in left_out}
            ).encode(), why

        return change_of

    server = {
        "type": "track",
        "event": "Invoice Paid",
        "properties": {"amount": 1e3},
        "anonymousId": None,
    }
    return [
        changed(None, "context", "integrations", **server, userId=1_234_567),
        changed(
            None,
            **server,
            userId="server-user",
            context={"library": "my own", "page": None, "ip": None},
        ),
        changed(None, "timestamp"),
        changed(None, "messageId"),
        changed(None, type="identify", userId="plain", traits=None),
        changed(
            None,
            type="page",
            userId="from-server",
            context={},
            properties={"url": "https://example.com/s", "title": "S"},
            name="S",
        ),
        changed(None, timestamp="2024-02-29T23:59:59.999999+05:30"),
        lambda record: (_line(record), None),  # handed in twice
        changed(None, messageId="undefined"),
        changed(None, type="alias", userId="from-server", previousId=4711, context={}),
        changed(None, type="group", userId=None, groupId="anonymous-member's", traits={}),
        changed(
            None,
            type="track",
            event="Grüße \u2028 \U0001f680",
            properties={"": None, "deep": [[{"a": 2**80}]], "$ip": "::1"},
        ),
        changed(Reason.MISSING_DISTINCT_ID, "userId", "anonymousId"),
        changed(Reason.MISSING_TIMESTAMP, "timestamp", "originalTimestamp"),
        changed(Reason.MISSING_TIMESTAMP, timestamp="yesterday"),
        changed(None, userId="Undefined"),
        changed(None, type="identify", userId="fine", anonymousId="null"),
        changed(Reason.MISSING_EVENT, "event", type="track"),
        changed(Reason.MISSING_EVENT, "type"),
        changed(Reason.UNMAPPABLE, type="delete"),
        changed(Reason.MISSING_DISTINCT_ID, "previousId", type="alias"),
        changed(Reason.INVALID_EVENT, properties=["a"]),
        lambda record: (_line(record)[:-20], Reason.UNDECODABLE),
        lambda record: (_line(record)[:-1] + b',"x":"\xff"}', Reason.UNDECODABLE),
        lambda record: (b"[" + _line(record) + b"]", Reason.UNDECODABLE),
    ]
