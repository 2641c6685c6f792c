"""Flags of a user over HTTP, and the definitions for SDKs that evaluate by themselves.

The forms (interface document: "POST /decide?v=3"; wire facts: Flags): `/decide` of version 1 lists
the keys of the flags that are on, version 2 maps them to their values, version 3 maps all flags to
theirs, false ones too, and adds payloads; later ones, and `/flags` from version 2 on, have an
object for each flag. `/flags` of version 1 has `/decide`'s mapping and payloads; each of its
responses has the request's id and the time of the evaluation. A GET of `/flags`, which names no
user, also has the settings of `/decide`.

A flag that can't be computed is absent, so that a client keeps the value that it has; among the
objects it is there, off and with `failed`. Then `errorsWhileComputingFlags` is true. Definitions
don't have the flags of remote configuration, which are not evaluated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote
from uuid import NAMESPACE_URL, uuid5

from forwarder.sandbox.flags.definitions import Flag
from forwarder.sandbox.flags.evaluation import Evaluation, FlagResult
from forwarder.sandbox.flags.local import definitions_for_sdks
from forwarder.sandbox.flags.places import client_address
from forwarder.sandbox.flags.remote_config import remote_config
from forwarder.sandbox.flags.stored import (
    NO_DEFINITIONS,
    DefinitionKind,
    ProjectDefinitions,
    StoredDefinition,
    list_definitions,
    project_definitions,
)
from forwarder.sandbox.flags.subjects import FlagQuestion, decide
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
from forwarder.sandbox.store.meaning import LONGEST_DISTINCT_ID, storable

DECIDE: Final = "/decide"
FLAGS: Final = "/flags"
DEFINITIONS: Final = ("/flags/definitions", "/api/feature_flag/local_evaluation")
LEGACY_DEFINITIONS: Final = "/api/feature_flag"
"""The path that SDKs of 2021 and 2022 use for the definitions: a page of a list, without an ETag.
"""


_COOKIELESS: Final = "$posthog_cookieless"
"""What clients without cookies send in place of an id."""


def _is_object(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _is_list_of_texts(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    )


_FIELDS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[object], bool]]]] = {
    "groups": (("groups", "$groups"), _is_object),
    "person_properties": (("person_properties", "$properties"), _is_object),
    "group_properties": (
        ("group_properties", "$group_properties"),
        lambda value: (
            value is None or (isinstance(value, dict) and all(map(_is_object, value.values())))
        ),
    ),
    "flag_keys_to_evaluate": (("flag_keys_to_evaluate", "flag_keys"), _is_list_of_texts),
    "evaluation_contexts": (("evaluation_contexts", "evaluation_environments"), _is_list_of_texts),
}
"""The names of each field of a request for flags, and what it may be: as in the real service, null
counts as not given.
"""
NESTED_SINCE: Final = {DECIDE: 4, FLAGS: 2}
"""The version from which on each flag is an object."""


def evaluate_flags(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a request for a user's flags."""
    body = read_object(exchange.decoded_text(exchange.policy.max_body))
    received = exchange.received
    policy = exchange.policy
    api_key = check_key(
        next((body[name] for name in TOKEN_NAMES if body.get(name) is not None), None), policy.keys
    )
    version = _version(received, api_key)
    question = _question(body, api_key, received, policy)
    disabled = body.get("disable_flags") is True
    evaluation = (
        Evaluation({}, {}) if disabled else decide(exchange.store, api_key, question, exchange.now)
    )
    whose = f"{api_key}\0{storable(question.distinct_id)}"
    form = _form(received.path, version, evaluation, project_definitions(exchange.store, api_key))
    answer = _answer(received.path, form, whose, exchange)
    if received.parameter("config") == "true":
        answer = {**remote_config(exchange.store, api_key), **answer}
    return ServiceResponse(200, json.dumps(answer)), api_key


def evaluate_without_user(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a GET, which names no user: the settings of a client."""
    received = exchange.received
    api_key = next(
        (value for name in TOKEN_NAMES if (value := received.parameter(name)) is not None), None
    )
    if api_key is not None:
        check_key(api_key, exchange.policy.keys)
    form = _form(received.path, _version(received, api_key), Evaluation({}, {}), NO_DEFINITIONS)
    answer = _answer(received.path, form, "", exchange)
    if received.path == FLAGS:
        answer = {**_decide_settings(strict=True), "sessionRecording": False, **answer}
    return ServiceResponse(200, json.dumps(answer)), api_key


def list_flag_definitions(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an SDK's request for definitions, which requires a secret key;
    304 if its ETag is current.
    """
    received = exchange.received
    api_key = received.parameter("token")
    if rejection := _authorization_error(received, api_key, exchange.policy):
        return rejection, api_key
    body = json.dumps(
        definitions_for_sdks(
            exchange.store, api_key or "", send_cohorts=_is_set(received, "send_cohorts")
        )
    )
    etag = f'"{hashlib.sha256(body.encode()).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "private, must-revalidate"}
    known = etag in _etags(received.headers.get("if-none-match", ""))
    return ServiceResponse(304, "", headers=headers) if known else ServiceResponse(
        200, body, headers=headers
    ), api_key


def list_legacy_definitions(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an older SDK's request for definitions, which requires a secret key: a page of a
    list, with all flags.
    """
    api_key = exchange.received.parameter("token")
    if rejection := _authorization_error(exchange.received, api_key, exchange.policy):
        return rejection, api_key
    flags = [
        _legacy(flag)
        for flag in definitions_for_sdks(exchange.store, api_key or "", send_cohorts=False)["flags"]
    ]
    return ServiceResponse(
        200, json.dumps({"count": len(flags), "next": None, "previous": None, "results": flags})
    ), api_key


def flag_payload(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an SDK's request for the payload of a flag, by its key or id.

    A flag of remote configuration without a payload has an empty body. Another flag without a
    payload is 404, as one that does not exist; in the real service, and so with `strict`, every
    other flag is.
    """
    received = exchange.received
    api_key = received.parameter("token")
    if rejection := _authorization_error(received, api_key, exchange.policy):
        return rejection, api_key
    flag = _remote_flag(exchange, api_key or "", unquote(received.path.split("/")[-2]))
    if flag is None:
        return management_error_response(not_found()), api_key
    payload = (flag.content["filters"].get("payloads") or {}).get("true")
    return ServiceResponse(200, "" if payload in (None, "") else json.dumps(payload)), api_key


def _remote_flag(exchange: Exchange, api_key: str, name: str) -> StoredDefinition | None:
    """The flag with this key, or, if it is a number, with this id, whose payload SDKs
    can request.
    """
    flags = list_definitions(exchange.store, DefinitionKind.FLAG, api_key)
    wanted = [
        flag
        for flag in flags
        if (str(flag.content["id"]) if name.isascii() and name.isdigit() else flag.name) == name
    ]
    return next(
        (
            flag
            for flag in wanted
            if _has_remote_payload(flag.content, strict=exchange.policy.strict)
        ),
        None,
    )


def _has_remote_payload(flag: Mapping[str, Any], *, strict: bool) -> bool:
    if flag["deleted"]:
        return False
    return flag.get("is_remote_configuration") is True or (
        not strict and (flag["filters"].get("payloads") or {}).get("true") is not None
    )


def _question(
    body: Mapping[str, object], api_key: str, received: ReceivedRequest, policy: IngestPolicy
) -> FlagQuestion:
    """Whom a body asks for. Raises `RequestRejected` (400)."""
    distinct_id = body.get("distinct_id", body.get("$distinct_id"))
    if distinct_id is None:
        raise RequestRejected(400, "no distinct_id", api_key=api_key)
    values: dict[str, Any] = {}
    for name, (names, fits) in _FIELDS.items():
        values[name] = next((body[each] for each in names if body.get(each) is not None), None)
        if not fits(values[name]):
            raise RequestRejected(400, f"{name} has the wrong type", api_key=api_key)
    address = (
        None
        if body.get("geoip_disable") is True
        else client_address(received.headers, received.peer)
    )
    person = values["person_properties"] or {}
    anonymous = _first_text(body, person, "anon_distinct_id")
    return FlagQuestion(
        distinct_id=_text(distinct_id)[:LONGEST_DISTINCT_ID],
        groups=values["groups"] or {},
        person_properties=person,
        group_properties={
            name: each or {} for name, each in (values["group_properties"] or {}).items()
        },
        place={} if address is None else policy.locate(address),
        keys=values["flag_keys_to_evaluate"],
        contexts=values["evaluation_contexts"],
        device_id=_first_text(body, person, "device_id"),
        anonymous_id=anonymous and anonymous[:LONGEST_DISTINCT_ID],
    )


def _first_text(body: Mapping[str, object], person: Mapping[str, object], name: str) -> str | None:
    """A field that clients send with or without a dollar sign, or among the person properties:
    the first one that is a text, neither empty nor what stands for a client without cookies.
    """
    sent = (body.get(f"${name}"), body.get(name), person.get(f"${name}"))
    return next(
        (each for each in sent if isinstance(each, str) and each not in ("", _COOKIELESS)), None
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _version(received: ReceivedRequest, api_key: str | None) -> int:
    version = received.parameter("v") or "1"
    if not (version.isascii() and version.isdecimal()) or len(version) > 4:
        raise RequestRejected(400, "v is not a version", api_key=api_key)
    return int(version)


def _form(
    path: str, version: int, evaluation: Evaluation, project: ProjectDefinitions
) -> dict[str, Any]:
    """An evaluation in the form of a version."""
    form: dict[str, Any]
    results = evaluation.results
    values = {
        key: result.variant if result.variant is not None else result.enabled
        for key, result in results.items()
    }
    if version >= NESTED_SINCE[path]:
        experiments = {each["feature_flag_key"] for each in project.experiments}
        nested = {
            key: show_flag(result, has_experiment=key in experiments)
            for key, result in results.items()
        }
        failed = {
            key: _failed(project.flags[key], why, has_experiment=key in experiments)
            for key, why in evaluation.failed.items()
        }
        form = {"flags": {**nested, **failed}}
    elif path == DECIDE and version == 1:
        form = {"featureFlags": [key for key, result in results.items() if result.enabled]}
    elif path == DECIDE and version == 2:
        form = {
            "featureFlags": {key: value for key, value in values.items() if results[key].enabled}
        }
    else:
        payloads = {
            key: result.payload for key, result in results.items() if result.payload is not None
        }
        form = {"featureFlags": values, "featureFlagPayloads": payloads}
    return {**form, "errorsWhileComputingFlags": evaluation.has_errors}


def show_flag(result: FlagResult, *, has_experiment: bool = False) -> dict[str, Any]:
    """A decision as an object."""
    reason = result.reason
    return {
        "key": result.flag.key,
        "enabled": result.enabled,
        "variant": result.variant,
        "reason": {
            "code": reason.code,
            "condition_index": reason.condition_index,
            "description": reason.description,
        },
        "metadata": _metadata(result.flag, result.payload, has_experiment=has_experiment),
    }


def _failed(flag: Flag, why: str, *, has_experiment: bool) -> dict[str, Any]:
    return {
        "key": flag.key,
        "enabled": False,
        "variant": None,
        "failed": True,
        "reason": {"code": "error", "condition_index": None, "description": why},
        "metadata": _metadata(flag, None, has_experiment=has_experiment),
    }


def _metadata(flag: Flag, payload: str | None, *, has_experiment: bool) -> dict[str, Any]:
    content = flag.content
    number = content["id"]
    version = content["version"]
    return {
        "id": number,
        "version": version,
        "description": None,
        "payload": payload,
        "has_experiment": has_experiment,
    }


def _answer(path: str, form: Mapping[str, Any], whose: str, exchange: Exchange) -> dict[str, Any]:
    if path == DECIDE:
        return {**_decide_settings(strict=exchange.policy.strict), **form}
    request = str(uuid5(NAMESPACE_URL, f"{whose}\0{exchange.at!r}"))
    return {**form, "requestId": request, "evaluatedAt": int(exchange.at * 1000)}


def _decide_settings(*, strict: bool) -> dict[str, Any]:
    """The settings in a response of `/decide`. `strict`: those of the real service."""
    return {
        "config": {"enable_collect_everything": True},
        "toolbarParams": {},
        "isAuthenticated": False,
        "supportedCompression": ["gzip", "gzip-js"] if strict else ["gzip", "lz64"],
    }


def _authorization_error(
    received: ReceivedRequest, api_key: str | None, policy: IngestPolicy
) -> ServiceResponse | None:
    """The error for a request without a secret key, with a project's public key, or of an unknown
    project; None if it is authorized.
    """
    scheme, _, secret = received.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        return management_error_response(not_authenticated())
    if secret.strip().startswith("phc_") or (
        api_key is not None and not policy.keys.knows(api_key)
    ):
        return management_error_response(authentication_failed())
    return None


def _is_set(received: ReceivedRequest, name: str) -> bool:
    """Whether a parameter of the query is there and doesn't say no."""
    return (received.parameter(name) or "true").lower() not in (
        "false",
        "0",
    ) and received.parameter(name) is not None


def _legacy(flag: Mapping[str, Any]) -> dict[str, Any]:
    """A definition with what the oldest SDKs read: whether the flag is but a
    rollout, and of how many.
    """
    groups = flag["filters"].get("groups") or []
    simple = (
        len(groups) == 1
        and not groups[0].get("properties")
        and not flag["filters"].get("multivariate")
    )
    rollout = groups[0].get("rollout_percentage") if simple else None
    return {**flag, "is_simple_flag": simple, "rollout_percentage": rollout}


def _etags(header: str) -> list[str]:
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]
