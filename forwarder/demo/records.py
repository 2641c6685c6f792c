"""What the Kafka demo produces: the little shop's story as records of two topics, with what real topics hold beside events.

Invariants: each event carries a number of its own among its properties, by which it can be found again at the other end; every other one
has neither uuid nor timestamp. The payments are no events, but JSON of somebody else's, which `MAPPING` makes events of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from forwarder.demo.traffic import story

EVENTS_TOPIC: Final = "shop-events"
PAYMENTS_TOPIC: Final = "shop-payments"
NUMBER: Final = "record"
"""The property that holds an event's number."""

MAPPING: Final[Mapping[str, Any]] = {
    "where": '.state != "pending"',
    "event": ".kind",
    "distinct_id": ".customer.id",
    "timestamp": {"from": ".at"},
    "properties": {"amount": ".amount", "method": ".card.brand", NUMBER: ".number"},
}
"""Of payments: the card's number is no property, and stays behind."""

PAYMENT_EVERY: Final = 7
TOMBSTONE_AT: Final = 10
BROKEN_AT: Final = 20
"""Places in the story."""


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One record. `number` is that of the event that is to become of it; None if none is."""

    topic: str
    key: str
    value: bytes | None
    number: int | None = None
    broken: bool = False
    """Whether it is to become a dead letter."""


def records(visitors: int | None) -> Iterator[SampleRecord]:
    """The story of `visitors` visitors as records; without end for None."""
    teller, number = _Teller(), 0
    for place, call in enumerate(story(visitors)):
        call(teller, str(uuid4()))
        yield _event(teller.told, number)
        number += 1
        if place % PAYMENT_EVERY == 0:
            yield _payment(number, pending=False)
            yield _payment(number, pending=True)
            number += 1
        if place == TOMBSTONE_AT:
            yield SampleRecord(EVENTS_TOPIC, "customer-0", None)
        if place == BROKEN_AT:
            yield SampleRecord(EVENTS_TOPIC, "customer-0", b'{"event": "order placed", "distinct_id": "custom', broken=True)


def _event(told: dict[str, Any], number: int) -> SampleRecord:
    told["properties"][NUMBER] = number
    if number % 2:
        del told["uuid"]
    else:
        told["timestamp"] = datetime.now(UTC).isoformat()
    return SampleRecord(EVENTS_TOPIC, told["distinct_id"], _json(told), number)


def _payment(number: int, *, pending: bool) -> SampleRecord:
    customer = f"customer-{number}"
    payment = {
        "kind": "payment received",
        "state": "pending" if pending else "done",
        "number": number,
        "customer": {"id": customer},
        "at": datetime.now(UTC).isoformat(),
        "amount": 49.0,
        "card": {"brand": "Girocard", "number": "6799 9989 0000 0000"},
    }
    return SampleRecord(PAYMENTS_TOPIC, customer, _json(payment), None if pending else number)


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


class _Teller:
    """Listens to the story as an SDK would; `told` is the last event."""

    def __init__(self) -> None:
        self.told: dict[str, Any] = {}

    def capture(self, event: str, **kwargs: Any) -> None:
        """An event as a record holds it."""
        groups = {"$groups": kwargs["groups"]} if kwargs.get("groups") else {}
        self._tell(event, kwargs["distinct_id"], {**kwargs["properties"], **groups}, kwargs["uuid"])

    def alias(self, *, previous_id: str, distinct_id: str, uuid: str) -> None:
        """Two ids of one person."""
        self._tell("$create_alias", previous_id, {"distinct_id": previous_id, "alias": distinct_id}, uuid)

    def group_identify(self, *, group_type: str, group_key: str, properties: dict[str, Any], uuid: str) -> None:
        """A group."""
        group = {"$group_type": group_type, "$group_key": group_key, "$group_set": properties}
        self._tell("$groupidentify", f"{group_type}_{group_key}", group, uuid)

    def shutdown(self) -> None:
        """Nothing is queued."""

    def _tell(self, event: str, distinct_id: str, properties: dict[str, Any], uuid: str) -> None:
        self.told = {"event": event, "distinct_id": distinct_id, "properties": properties, "uuid": uuid}
