"""Flag evaluation and the definitions that SDKs evaluate by themselves. There are no flags yet: what is asked is checked, the answers have
the form of their version, and every one of them is empty.

The forms (interface document: "POST /decide?v=3"; wire facts: Flags): `/decide` of version 1 lists the keys of the flags that are on,
version 2 maps them to their values, version 3 adds payloads; later ones, and `/flags` from version 2 on, have an object for each flag.
`/flags` of version 1 has `/decide`'s mapping and payloads; each of its answers has the request's id and the time of the evaluation.
A GET of `/flags`, which names nobody, also has what `/decide` says beside the flags.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from forwarder.sandbox.answers import Answer, Refusal, management_error
from forwarder.sandbox.decoding import Received
from forwarder.sandbox.judging import checked_key
from forwarder.sandbox.management.call import authentication_failed, not_authenticated, not_found
from forwarder.sandbox.recording import Rules, decoded_body, keep, keep_refusal, record_of
from forwarder.sandbox.remote_config import remote_config
from forwarder.sandbox.shapes import TOKEN_NAMES, read_object
from forwarder.sandbox.store import Store

DECIDE: Final = "/decide"
FLAGS: Final = "/flags"
DEFINITIONS: Final = ("/flags/definitions", "/api/feature_flag/local_evaluation")
LISTED: Final = "/api/feature_flag"
"""Where SDKs of 2021 and 2022 asked for the definitions: as a page of a list, without an ETag."""
_OBJECTS: Final[dict[str, Callable[[object], bool]]] = {
    "groups": lambda value: value is None or isinstance(value, dict),
    "person_properties": lambda value: value is None or isinstance(value, dict),
    "group_properties": lambda value: value is None or (isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())),
}
"""What these may be in a request for flags: as in the real service, null counts as not given."""
NESTED_SINCE: Final = {DECIDE: 4, FLAGS: 2}
"""The version from which on each flag is an object."""


def evaluate(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer a request for a user's flags, which was received at wall-clock second `at`."""
    record = record_of(received, datetime.fromtimestamp(at, UTC))
    try:
        body = read_object(decoded_body(received, rules, record).text)
        api_key = _known_key(body, rules)
        answer = _evaluation(received, body, api_key, at, strict=rules.strict)
    except Refusal as refusal:
        return keep_refusal(store, record, refusal)
    return keep(store, record, answer, api_key)


def evaluate_nobody(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer a GET, which names no user: what a client has to know to begin with."""
    record = record_of(received, datetime.fromtimestamp(at, UTC))
    api_key = next((value for name in TOKEN_NAMES if (value := received.parameter(name)) is not None), None)
    try:
        if api_key is not None:
            checked_key(api_key, rules.keys)
        answer = _answer(received.path, _version(received, api_key), "", at, strict=rules.strict)
        if received.path == FLAGS:
            answer = Answer(200, json.dumps({**_decided(strict=True), "sessionRecording": False, **json.loads(answer.body)}))
    except Refusal as refusal:
        return keep_refusal(store, record, refusal)
    return keep(store, record, answer, api_key)


def define(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer an SDK that wants the definitions, for which it needs a secret key; 304 if its ETag says that it has them already."""
    record = record_of(received, datetime.fromtimestamp(at, UTC))
    api_key = received.parameter("token")
    if refusal := _not_allowed(received, api_key, rules):
        return keep(store, record, refusal, api_key)
    body = json.dumps({"flags": [], "group_type_mapping": _group_types(store, api_key), "cohorts": {}})
    etag = f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, must-revalidate"}
    if etag in _etags(received.headers.get("if-none-match", "")):
        return keep(store, record, Answer(304, "", headers=headers), api_key)
    return keep(store, record, Answer(200, body, headers=headers), api_key)


def list_definitions(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer an older SDK that wants the definitions, for which it needs a secret key: a page of a list, which is empty."""
    record = record_of(received, datetime.fromtimestamp(at, UTC))
    api_key = received.parameter("token")
    page = Answer(200, json.dumps({"count": 0, "next": None, "previous": None, "results": []}))
    return keep(store, record, _not_allowed(received, api_key, rules) or page, api_key)


def payload_of_flag(received: Received, at: float, rules: Rules, store: Store) -> Answer:
    """Answer an SDK that wants one flag's payload for everybody: there is no such flag."""
    record = record_of(received, datetime.fromtimestamp(at, UTC))
    api_key = received.parameter("token")
    missing = management_error(not_found())
    return keep(store, record, _not_allowed(received, api_key, rules) or missing, api_key)


def _known_key(body: Mapping[str, object], rules: Rules) -> str:
    return checked_key(next((body[name] for name in TOKEN_NAMES if body.get(name) is not None), None), rules.keys)


def _evaluation(received: Received, body: Mapping[str, object], api_key: str, at: float, *, strict: bool) -> Answer:
    distinct_id = body.get("distinct_id", body.get("$distinct_id"))
    if distinct_id in (None, ""):
        raise Refusal(400, "no distinct_id", api_key=api_key)
    if (odd := next((name for name, fits in _OBJECTS.items() if not fits(body.get(name))), None)) is not None:
        raise Refusal(400, f"{odd} has the wrong type", api_key=api_key)
    answer = _answer(received.path, _version(received, api_key), f"{api_key}\0{distinct_id}", at, strict=strict)
    if received.parameter("config") == "true":
        return Answer(200, json.dumps({**remote_config(api_key), **json.loads(answer.body)}))
    return answer


def _version(received: Received, api_key: str | None) -> int:
    version = received.parameter("v") or "1"
    if not (version.isascii() and version.isdecimal()) or len(version) > 4:
        raise Refusal(400, "v is not a version", api_key=api_key)
    return int(version)


def _answer(path: str, version: int, whose: str, at: float, *, strict: bool) -> Answer:
    evaluation: dict[str, Any]
    if version >= NESTED_SINCE[path]:
        evaluation = {"flags": {}}
    elif path == DECIDE and version == 1:
        evaluation = {"featureFlags": []}
    elif path == DECIDE and version == 2:
        evaluation = {"featureFlags": {}}
    else:
        evaluation = {"featureFlags": {}, "featureFlagPayloads": {}}
    evaluation["errorsWhileComputingFlags"] = False
    if path == DECIDE:
        return Answer(200, json.dumps({**_decided(strict=strict), **evaluation}))
    request = str(uuid5(NAMESPACE_URL, f"{whose}\0{at!r}"))
    return Answer(200, json.dumps({**evaluation, "requestId": request, "evaluatedAt": int(at * 1000)}))


def _decided(*, strict: bool) -> dict[str, Any]:
    """What `/decide` says beside the flags. `strict`: as the real service says it."""
    return {
        "config": {"enable_collect_everything": True},
        "toolbarParams": {},
        "isAuthenticated": False,
        "supportedCompression": ["gzip", "gzip-js"] if strict else ["gzip", "lz64"],
    }


def _not_allowed(received: Received, api_key: str | None, rules: Rules) -> Answer | None:
    """Why definitions are not for whoever asks: no secret key, a project's public one instead, or a project that doesn't exist."""
    scheme, _, secret = received.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        return management_error(not_authenticated())
    if secret.strip().startswith("phc_") or (api_key is not None and not rules.keys.knows(api_key)):
        return management_error(authentication_failed())
    return None


def _group_types(store: Store, api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {str(index): name for index, name in enumerate(store.group_types(api_key))}


def _etags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
