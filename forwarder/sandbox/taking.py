"""One request of events, from its bytes to its answer and its record: decode, cut, judge, keep. Runs on the store's thread."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from forwarder.sandbox.answers import BEACON, TAKEN, Answer, Refusal
from forwarder.sandbox.decoding import Decoded, Received
from forwarder.sandbox.judging import Judgment, checked_key, judge, token_of
from forwarder.sandbox.recording import Rules, decoded_body, keep, keep_refusal, record_of
from forwarder.sandbox.shapes import read_envelope
from forwarder.sandbox.store import Store
from forwarder.sandbox.timing import from_milliseconds


def take(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Take a request of events that was received at wall-clock second `at`."""
    now = datetime.fromtimestamp(at, UTC)
    record = record_of(received, now)
    try:
        decoded = decoded_body(received, rules, record)
        judgment = _judge(received, decoded, rules, now)
    except Refusal as refusal:
        return keep_refusal(store, record, refusal)
    record.events, record.unnamed, record.historical = judgment.events, judgment.unnamed, judgment.historical
    return keep(store, record, BEACON if received.parameter("beacon") == "1" else TAKEN, judgment.api_key)


def take_replay(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Take a part of a session's replay (`/s/`): checked as a request of events is, recorded, and its content dropped."""
    record = record_of(received, datetime.fromtimestamp(at, UTC))
    try:
        api_key = token_of(read_envelope(decoded_body(received, replace(rules, max_body=rules.max_replay), record).text))
        if not rules.strict:
            checked_key(api_key, rules.keys)
    except Refusal as refusal:
        return keep_refusal(store, record, refusal)
    return keep(store, record, BEACON if received.parameter("beacon") == "1" else TAKEN, api_key)


def _judge(received: Received, decoded: Decoded, rules: Rules, now: datetime) -> Judgment:
    envelope = read_envelope(decoded.text)
    envelope.sent_at = envelope.sent_at or from_milliseconds(received.parameter("_"))
    return judge(envelope, rules.keys, received.path, now, strict=rules.strict)
