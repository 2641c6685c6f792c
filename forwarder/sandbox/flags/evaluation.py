"""Flag evaluation, and the definitions for SDKs that evaluate locally. There are no flags yet: requests are validated, responses are empty.

The forms (interface document: "POST /decide?v=3"; wire facts: Flags): `/decide` of version 1 lists the keys of the flags that are on,
version 2 maps them to their values, version 3 adds payloads; later ones, and `/flags` from version 2 on, have an object for each flag.
`/flags` of version 1 has `/decide`'s mapping and payloads; each of its responses has the request's id and the time of the evaluation.
A GET of `/flags`, which names no user, also has the settings of `/decide`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from forwarder.sandbox.flags.remote_config import remote_config
from forwarder.sandbox.ingest.decoding import ReceivedRequest
from forwarder.sandbox.ingest.parsing import TOKEN_NAMES, read_object
from forwarder.sandbox.ingest.recording import Exchange, IngestPolicy
from forwarder.sandbox.ingest.validation import check_key
from forwarder.sandbox.protocol.http import (
    RequestRejected,
    ServiceResponse,
    authentication_failed,
    management_error_response,
    not_authenticated,
    not_found,
)
from forwarder.sandbox.store.database import Store

DECIDE: Final = "/decide"
FLAGS: Final = "/flags"
DEFINITIONS: Final = ("/flags/definitions", "/api/feature_flag/local_evaluation")
LEGACY_DEFINITIONS: Final = "/api/feature_flag"
"""The path that SDKs of 2021 and 2022 use for the definitions: a page of a list, without an ETag."""
_OBJECTS: Final[dict[str, Callable[[object], bool]]] = {
    "groups": lambda value: value is None or isinstance(value, dict),
    "person_properties": lambda value: value is None or isinstance(value, dict),
    "group_properties": lambda value: value is None or (isinstance(value, dict) and all(isinstance(each, dict) for each in value.values())),
}
"""What these may be in a request for flags: as in the real service, null counts as not given."""
NESTED_SINCE: Final = {DECIDE: 4, FLAGS: 2}
"""The version from which on each flag is an object."""


def evaluate_flags(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a request for a user's flags."""
    body = read_object(exchange.decoded_text(exchange.policy.max_body))
    api_key = _known_key(body, exchange.policy)
    return _evaluation(exchange.received, body, api_key, exchange.at, strict=exchange.policy.strict), api_key


def evaluate_without_user(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a GET, which names no user: the settings of a client."""
    received, policy = exchange.received, exchange.policy
    api_key = next((value for name in TOKEN_NAMES if (value := received.parameter(name)) is not None), None)
    if api_key is not None:
        check_key(api_key, policy.keys)
    answer = _answer(received.path, _version(received, api_key), "", exchange.at, strict=policy.strict)
    if received.path == FLAGS:
        answer = ServiceResponse(200, json.dumps({**_decide_settings(strict=True), "sessionRecording": False, **json.loads(answer.body)}))
    return answer, api_key


def list_definitions(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an SDK's request for definitions, which requires a secret key; 304 if its ETag is current."""
    received = exchange.received
    api_key = received.parameter("token")
    if rejection := _authorization_error(received, api_key, exchange.policy):
        return rejection, api_key
    body = json.dumps({"flags": [], "group_type_mapping": _group_types(exchange.store, api_key), "cohorts": {}})
    etag = f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, must-revalidate"}
    known = etag in _etags(received.headers.get("if-none-match", ""))
    return ServiceResponse(304, "", headers=headers) if known else ServiceResponse(200, body, headers=headers), api_key


def list_legacy_definitions(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an older SDK's request for definitions, which requires a secret key: an empty page of a list."""
    api_key = exchange.received.parameter("token")
    page = ServiceResponse(200, json.dumps({"count": 0, "next": None, "previous": None, "results": []}))
    return _authorization_error(exchange.received, api_key, exchange.policy) or page, api_key


def flag_payload(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an SDK's request for one flag's payload: the flag does not exist."""
    api_key = exchange.received.parameter("token")
    missing = management_error_response(not_found())
    return _authorization_error(exchange.received, api_key, exchange.policy) or missing, api_key


def _known_key(body: Mapping[str, object], policy: IngestPolicy) -> str:
    return check_key(next((body[name] for name in TOKEN_NAMES if body.get(name) is not None), None), policy.keys)


def _evaluation(received: ReceivedRequest, body: Mapping[str, object], api_key: str, at: float, *, strict: bool) -> ServiceResponse:
    distinct_id = body.get("distinct_id", body.get("$distinct_id"))
    if distinct_id in (None, ""):
        raise RequestRejected(400, "no distinct_id", api_key=api_key)
    if (odd := next((name for name, fits in _OBJECTS.items() if not fits(body.get(name))), None)) is not None:
        raise RequestRejected(400, f"{odd} has the wrong type", api_key=api_key)
    answer = _answer(received.path, _version(received, api_key), f"{api_key}\0{distinct_id}", at, strict=strict)
    if received.parameter("config") == "true":
        return ServiceResponse(200, json.dumps({**remote_config(api_key), **json.loads(answer.body)}))
    return answer


def _version(received: ReceivedRequest, api_key: str | None) -> int:
    version = received.parameter("v") or "1"
    if not (version.isascii() and version.isdecimal()) or len(version) > 4:
        raise RequestRejected(400, "v is not a version", api_key=api_key)
    return int(version)


def _answer(path: str, version: int, whose: str, at: float, *, strict: bool) -> ServiceResponse:
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
        return ServiceResponse(200, json.dumps({**_decide_settings(strict=strict), **evaluation}))
    request = str(uuid5(NAMESPACE_URL, f"{whose}\0{at!r}"))
    return ServiceResponse(200, json.dumps({**evaluation, "requestId": request, "evaluatedAt": int(at * 1000)}))


def _decide_settings(*, strict: bool) -> dict[str, Any]:
    """The settings in a response of `/decide`. `strict`: those of the real service."""
    return {
        "config": {"enable_collect_everything": True},
        "toolbarParams": {},
        "isAuthenticated": False,
        "supportedCompression": ["gzip", "gzip-js"] if strict else ["gzip", "lz64"],
    }


def _authorization_error(received: ReceivedRequest, api_key: str | None, policy: IngestPolicy) -> ServiceResponse | None:
    """The error for a request without a secret key, with a project's public key, or of an unknown project; None if it is authorized."""
    scheme, _, secret = received.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        return management_error_response(not_authenticated())
    if secret.strip().startswith("phc_") or (api_key is not None and not policy.keys.knows(api_key)):
        return management_error_response(authentication_failed())
    return None


def _group_types(store: Store, api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {str(index): name for index, name in enumerate(store.group_types(api_key))}


def _etags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
