"""Flags of a user over HTTP, as the service answers them (`rust/feature-flags/src/api/endpoint.rs`
of PostHog/posthog at 00a9ba8f059a, `flags/flag_request.rs` at 00c5d0b71e7a; the forms: `forms`).

The version is `v` or `version`; one that isn't a number counts as 1. `/flags` asked for neither a
version nor settings is version 2 with settings. With `disable_flags` no user is needed, and there
are no flags. A GET names no user, and is answered the settings that a client begins with.

By the contract `/decide` has seven fields and nothing else. Strictly it has what the service adds:
the request's id, the time of the evaluation and the project's settings; its versions 1 and 2 don't
say whether there were errors. Strictly, too, a key that is missing or unknown is answered in JSON
(`api/errors.rs`, read in its copy at ghostventuresai/Post_Hog 6e3052c3bcbc), and NaN and Infinity
in a body are null; an id that is neither a text nor a number is 400.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

from forwarder.contract.resources import ErrorType
from forwarder.sandbox.flags.eligible import Eligibility, caller_runtime, parse_runtime
from forwarder.sandbox.flags.evaluation import Evaluation
from forwarder.sandbox.flags.forms import DECIDE, FLAGS, flags_in_form, tells_errors
from forwarder.sandbox.flags.places import client_address
from forwarder.sandbox.flags.remote_config import remote_config
from forwarder.sandbox.flags.stored import (
    NO_DEFINITIONS,
    ProjectDefinitions,
    project_definitions,
)
from forwarder.sandbox.flags.subjects import FlagQuestion, decide
from forwarder.sandbox.ingest.decoding import ReceivedRequest
from forwarder.sandbox.ingest.parsing import TOKEN_NAMES, read_object
from forwarder.sandbox.ingest.recording import Exchange, IngestPolicy, RequestHandler
from forwarder.sandbox.ingest.validation import check_key
from forwarder.sandbox.protocol.http import (
    ManagementError,
    RequestRejected,
    ServiceResponse,
    management_error_response,
)
from forwarder.sandbox.store.meaning import LONGEST_DISTINCT_ID, storable

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII).fullmatch
_LARGEST_VERSION: Final = 2**31 - 1
_NOTHING: Final = Evaluation({}, {})


_COOKIELESS: Final = "$posthog_cookieless"
"""What clients without cookies send in place of an id."""


def _is_object(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _is_list_of_texts(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(item, str) for item in value)
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
    "evaluation_runtime": (
        ("evaluation_runtime",),
        lambda value: value is None or isinstance(value, str),
    ),
}
"""The names of each field of a request for flags, and what it may be: as in the real service, null
counts as not given.
"""


_STRICT_FIELDS: Final[Mapping[str, tuple[tuple[str, ...], Callable[[object], bool]]]] = {
    "distinct_id": (
        ("distinct_id", "$distinct_id"),
        lambda value: (
            value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))
        ),
    ),
    **{
        name: ((name, f"${name}"), lambda value: isinstance(value, str | None))
        for name in ("anon_distinct_id", "device_id")
    },
    **{
        name: ((name,), lambda value: isinstance(value, bool | None))
        for name in ("disable_flags", "geoip_disable")
    },
}
"""What the real service is as strict about. By the contract an id may be any JSON, and a wrong type
of the others counts as not given.
"""


def evaluate_flags(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a request for a user's flags."""
    return _answer_errors(partial(_evaluate, over_quota=False), exchange)


def evaluate_over_quota(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a request for a user's flags of a project over its quota: with none (`check_limits`
    in `rust/feature-flags/src/handler/billing.rs` of PostHog/posthog at a6e3cd83a8e6).
    """
    return _answer_errors(partial(_evaluate, over_quota=True), exchange)


def evaluate_without_user(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer a GET, which names no user: the settings of a client."""
    return _answer_errors(_show_settings, exchange)


def _evaluate(exchange: Exchange, *, over_quota: bool) -> tuple[ServiceResponse, str | None]:
    policy = exchange.policy
    body = read_object(exchange.decoded_text(policy.max_body), lenient=policy.strict)
    api_key = _project_key([body.get(name) for name in TOKEN_NAMES], exchange)
    fields = _fields(body, api_key, strict=policy.strict)
    disabled = body.get("disable_flags") is True
    whose = f"{api_key}\0"
    evaluation = _NOTHING
    if not disabled:
        question = _question(body, fields, api_key, exchange)
        whose += storable(question.distinct_id)
        if not over_quota:
            evaluation = decide(exchange.store, api_key, question, exchange.now)
    form = _form(exchange, _answered(evaluation), project_definitions(exchange.store, api_key))
    if over_quota and not disabled:
        form["quotaLimited"] = ["feature_flags"]
    error = "a fault: over quota" if over_quota else None
    answer = {**_settings(exchange, api_key), **form, **_of_request(exchange, whose)}
    return ServiceResponse(200, json.dumps(answer), error=error), api_key


def _show_settings(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    received = exchange.received
    named = [received.parameter(name) for name in TOKEN_NAMES]
    api_key = None
    if any(value is not None for value in named):
        api_key = _project_key(named, exchange)
    form = _form(exchange, _NOTHING, NO_DEFINITIONS)
    settings = _decide_settings(strict=exchange.policy.strict)
    if received.path == FLAGS:
        settings = {**_decide_settings(strict=True), "sessionRecording": False}
    answer = {**settings, **form, **_of_request(exchange, "")}
    return ServiceResponse(200, json.dumps(answer)), api_key


def _answer_errors(
    handle: RequestHandler, exchange: Exchange
) -> tuple[ServiceResponse, str | None]:
    try:
        return handle(exchange)
    except ManagementError as error:
        return management_error_response(error), None


def _project_key(named: list[Any], exchange: Exchange) -> str:
    """The key of a project that exists, of those that a request names. Raises `RequestRejected`
    (401), strictly `ManagementError`.
    """
    key = next((value for value in named if value is not None), None)
    try:
        return check_key(key, exchange.policy.keys)
    except RequestRejected:
        if not exchange.policy.strict:
            raise
    code = "authentication_failed"
    detail = "Invalid or expired API key."
    if key in (None, ""):
        code = "not_authenticated"
        detail = "No API token provided."
    raise ManagementError(401, ErrorType.AUTHENTICATION, code, detail)


def _fields(body: Mapping[str, object], api_key: str, *, strict: bool) -> dict[str, Any]:
    """The fields of a body, each None if it isn't given. Raises `RequestRejected` (400)."""
    values: dict[str, Any] = {}
    for name, (names, fits) in {**_FIELDS, **(_STRICT_FIELDS if strict else {})}.items():
        values[name] = next(
            (body[member] for member in names if body.get(member) is not None), None
        )
        if not fits(values[name]):
            raise RequestRejected(400, f"{name} has the wrong type", api_key=api_key)
    return values


def _question(
    body: Mapping[str, object], values: Mapping[str, Any], api_key: str, exchange: Exchange
) -> FlagQuestion:
    """Whom a body asks for. Raises `RequestRejected` (400)."""
    received = exchange.received
    distinct_id = body.get("distinct_id", body.get("$distinct_id"))
    if distinct_id is None:
        raise RequestRejected(400, "no distinct_id", api_key=api_key)
    person = values["person_properties"] or {}
    anonymous = _first_text(body, person, "anon_distinct_id")
    place = _place(body, received, exchange.policy)
    return FlagQuestion(
        distinct_id=_text(distinct_id)[:LONGEST_DISTINCT_ID],
        groups=values["groups"] or {},
        # A property of the place that the request has as null is one that it doesn't know.
        person_properties={
            name: value for name, value in person.items() if value is not None or name not in place
        },
        group_properties={
            name: value or {} for name, value in (values["group_properties"] or {}).items()
        },
        place=place,
        keys=values["flag_keys_to_evaluate"],
        eligible=_eligibility(values, received),
        device_id=_first_text(body, person, "device_id"),
        anonymous_id=anonymous and anonymous[:LONGEST_DISTINCT_ID],
    )


def _first_text(body: Mapping[str, object], person: Mapping[str, object], name: str) -> str | None:
    """A field that clients send with or without a dollar sign, or among the person properties:
    the first one that is a text, neither empty nor what stands for a client without cookies.
    """
    sent = (body.get(f"${name}"), body.get(name), person.get(f"${name}"))
    return next(
        (text for text in sent if isinstance(text, str) and text not in ("", _COOKIELESS)), None
    )


def _place(
    body: Mapping[str, object], received: ReceivedRequest, policy: IngestPolicy
) -> Mapping[str, str]:
    if body.get("geoip_disable") is True:
        return {}
    address = client_address(received.headers, received.peer)
    return {} if address is None else policy.locate(address)


def _eligibility(values: Mapping[str, Any], received: ReceivedRequest) -> Eligibility:
    runtime = values["evaluation_runtime"]
    return Eligibility(
        caller_runtime(received.headers) if runtime is None else parse_runtime(runtime),
        values["evaluation_contexts"] or (),
        _asks(received, "only_evaluate_survey_feature_flags") is True,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _answered(evaluation: Evaluation) -> Evaluation:
    """What of an evaluation is answered: nothing of inactive flags."""
    results = {key: result for key, result in evaluation.results.items() if result.flag.active}
    return replace(evaluation, results=results)


def _form(
    exchange: Exchange, evaluation: Evaluation, project: ProjectDefinitions
) -> dict[str, Any]:
    """An evaluation in the form that a request asks for."""
    path = exchange.received.path
    version = _version(exchange.received)
    form = flags_in_form(path, version, evaluation, project)
    if not exchange.policy.strict or tells_errors(path, version):
        form["errorsWhileComputingFlags"] = evaluation.has_errors
    return form


def _version(received: ReceivedRequest) -> int:
    text = _version_text(received)
    if text:
        number = int(text) if _INTEGER(text) else 1
        return number if abs(number) <= _LARGEST_VERSION else 1
    return 2 if _asks_for_nothing(received) else 1


def _version_text(received: ReceivedRequest) -> str | None:
    return received.parameter("v") or received.parameter("version")


def _asks_for_nothing(received: ReceivedRequest) -> bool:
    """Whether it is up to the service what form a user's flags have, and whether settings
    come with them.
    """
    return (
        received.path == FLAGS
        and received.method == "POST"
        and not _version_text(received)
        and _asks(received, "config") is None
    )


def _asks(received: ReceivedRequest, name: str) -> bool | None:
    """What a parameter of the query says, which is yes unless it says no; None if it isn't
    there.
    """
    value = received.parameter(name)
    return None if value is None else value.lower() not in ("false", "0", "no", "off")


def _settings(exchange: Exchange, api_key: str) -> dict[str, Any]:
    """What goes with the flags of a user: by the contract the fields that `/decide` always has,
    and a project's settings for those who ask; strictly also for `/decide`, unless it says no.
    """
    received = exchange.received
    strict = exchange.policy.strict
    of_decide = received.path == DECIDE
    asked = _asks(received, "config")
    if asked is None:
        asked = _asks_for_nothing(received) or (of_decide and strict)
    return {
        **(remote_config(exchange.store, api_key) if asked else {}),
        **(_decide_settings(strict=strict) if of_decide and (asked or not strict) else {}),
    }


def _of_request(exchange: Exchange, whose: str) -> dict[str, Any]:
    """The request's id and the time of the evaluation, where they are answered."""
    if exchange.received.path == DECIDE and not exchange.policy.strict:
        return {}
    made = uuid5(NAMESPACE_URL, f"{whose}\0{exchange.at!r}")
    request = _uuid(exchange.received.headers.get("x-request-id", "")) or made
    return {"requestId": str(request), "evaluatedAt": int(exchange.at * 1000)}


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _decide_settings(*, strict: bool) -> dict[str, Any]:
    """The settings in a response of `/decide`. `strict`: those of the real service."""
    return {
        "config": {"enable_collect_everything": True},
        "toolbarParams": {},
        "isAuthenticated": False,
        "supportedCompression": ["gzip", "gzip-js"] if strict else ["gzip", "lz64"],
    }
