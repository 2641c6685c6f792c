"""One request, from its bytes to its answer and its record: decode, cut, judge, keep. Runs on the store's thread.

Every request leaves a record, also one that is refused. The answer is given after the commit that keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from forwarder.sandbox.answers import BEACON, TAKEN, Answer, Refusal, decided, refused
from forwarder.sandbox.decoding import Decoded, Received, decode
from forwarder.sandbox.judging import Judgment, Keys, checked_token, judge
from forwarder.sandbox.records import Arrival
from forwarder.sandbox.shapes import TOKEN_NAMES, read_envelope, read_object
from forwarder.sandbox.store import Store
from forwarder.sandbox.timing import format_time, from_milliseconds

HIDDEN_HEADERS: Final = frozenset({"authorization", "proxy-authorization", "cookie"})


@dataclass(frozen=True, slots=True)
class Rules:
    """How the sandbox answers: which keys exist, as the real service or by the contract, and below how many bytes a body must stay."""

    keys: Keys
    strict: bool
    max_body: int


def take(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Take a request of events that was received at wall-clock second `at`."""
    now = datetime.fromtimestamp(at, UTC)
    record = _record(received, now)
    try:
        decoded = _decode(received, rules, record)
        judgment = _judge(received, decoded, rules, now)
    except Refusal as refusal:
        return _keep(store, record, refused(refusal), refusal.api_key)
    record.events, record.unnamed, record.historical = judgment.events, judgment.unnamed, judgment.historical
    return _keep(store, record, BEACON if received.parameter("beacon") == "1" else TAKEN, judgment.api_key)


def decide(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer a request for flags, of which there are none (interface document: "POST /decide?v=3")."""
    record = _record(received, datetime.fromtimestamp(at, UTC))
    try:
        body = read_object(_decode(received, rules, record).text)
        api_key = _known_key(body, rules)
        answer = _decision(received, body, api_key, strict=rules.strict)
    except Refusal as refusal:
        return _keep(store, record, refused(refusal), refusal.api_key)
    return _keep(store, record, answer, api_key)


def refuse(received: Received, at: float, refusal: Refusal, store: Store) -> Answer:
    """Keep a request whose body was not even read to its end."""
    return _keep(store, _record(received, datetime.fromtimestamp(at, UTC)), refused(refusal), None)


def _record(received: Received, now: datetime) -> Arrival:
    headers = {name: "hidden" if name in HIDDEN_HEADERS else value for name, value in received.headers.items()}
    return Arrival(format_time(now), received.full_path, received.query, headers, status=0, answer="", size=len(received.body))


def _decode(received: Received, rules: Rules, record: Arrival) -> Decoded:
    decoded = decode(received, rules.max_body)
    record.encoding = decoded.encoding
    return decoded


def _judge(received: Received, decoded: Decoded, rules: Rules, now: datetime) -> Judgment:
    envelope = read_envelope(decoded.text)
    envelope.sent_at = envelope.sent_at or from_milliseconds(received.parameter("_"))
    return judge(envelope, rules.keys, received.path, now, strict=rules.strict)


def _known_key(body: Mapping[str, object], rules: Rules) -> str:
    api_key = checked_token(next((body[name] for name in TOKEN_NAMES if body.get(name) is not None), None))
    if not rules.keys.knows(api_key):
        raise Refusal(401, "no project has this key", api_key=api_key)
    return api_key


def _decision(received: Received, body: Mapping[str, object], api_key: str, *, strict: bool) -> Answer:
    if body.get("distinct_id") in (None, ""):
        raise Refusal(400, "no distinct_id", api_key=api_key)
    version = received.parameter("v") or "1"
    if not version.isdecimal() or len(version) > 4:
        raise Refusal(400, "v is not a version", api_key=api_key)
    return decided(int(version), strict=strict)


def _keep(store: Store, record: Arrival, answer: Answer, api_key: str | None) -> Answer:
    record.status, record.answer, record.error, record.api_key = answer.status, answer.body, answer.error, api_key
    store.add(record)
    return answer
