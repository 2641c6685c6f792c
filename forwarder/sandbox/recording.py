"""The record that each request leaves with its answer, also one that is refused. The answer is given after the commit that keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from forwarder.sandbox.answers import Answer, Refusal, refused
from forwarder.sandbox.decoding import Decoded, Received, decode
from forwarder.sandbox.judging import Keys
from forwarder.sandbox.records import Arrival
from forwarder.sandbox.store import Store
from forwarder.sandbox.timing import format_time

HIDDEN_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})


@dataclass(frozen=True, slots=True)
class Rules:
    """How the sandbox answers: which keys exist, as the real service or by the contract, and below how many bytes a body must stay."""

    keys: Keys
    strict: bool
    max_body: int
    max_replay: int = 64_000_001
    """The same for parts of a session's replay: those of 64 MB are accepted."""


def record_of(received: Received, now: datetime) -> Arrival:
    """A request that was received at `now`, without an answer yet."""
    headers = {name: "hidden" if name in HIDDEN_HEADERS else value for name, value in received.headers.items()}
    size = len(received.body)
    return Arrival(format_time(now), received.full_path, received.query, headers, status=0, answer="", size=size, method=received.method)


def decoded_body(received: Received, rules: Rules, record: Arrival) -> Decoded:
    """The text of a request; its record says how it was encoded. Raises `Refusal`."""
    decoded = decode(received, rules.max_body)
    record.encoding = decoded.encoding
    return decoded


def keep(store: Store, record: Arrival, answer: Answer, api_key: str | None) -> Answer:
    """Keep a request with its answer, and return that."""
    record.status, record.answer, record.error, record.api_key = answer.status, answer.body, answer.error, api_key
    store.add(record)
    return answer


def keep_refusal(store: Store, record: Arrival, refusal: Refusal) -> Answer:
    """Keep a request that is refused, and return the answer that says so."""
    return keep(store, record, refused(refusal), refusal.api_key)
