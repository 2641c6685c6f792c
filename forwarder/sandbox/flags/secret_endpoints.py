"""What server SDKs ask for with a secret key: a project's definitions, to evaluate flags by
themselves, and the payload of one flag.

The service's rules (`rust/feature-flags/src/api/flag_definitions.rs`, `api/auth.rs` and
`api/remote_config.rs` of PostHog/posthog at 0203be481711, 0084dac7afe0 and 0ba6847f3670; the
errors: `api/errors.rs`, read in its copy at ghostventuresai/Post_Hog 6e3052c3bcbc): the query names
the project. A personal key needs the scope to read or to write flags, and an owner who is a member
of the project's organization. Definitions have a weak ETag, and are 304 for who has it.

Personal keys come from a seed. A sandbox whose seed has none takes any secret, and any sandbox the
secret keys of projects (`phs_…`), which no seed can name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from forwarder.contract.resources import ErrorType
from forwarder.sandbox.flags.local import definitions_for_sdks
from forwarder.sandbox.flags.stored import DefinitionKind, StoredDefinition, list_definitions
from forwarder.sandbox.ingest.recording import Exchange
from forwarder.sandbox.manage.authorize import (
    ALL_SCOPES,
    FLAG_SCOPES,
    authenticate,
    calling_member,
)
from forwarder.sandbox.protocol.http import (
    ManagementError,
    ServiceResponse,
    forbidden,
    invalid,
    management_error_response,
    not_authenticated,
    not_found,
)

DEFINITIONS: Final = ("/flags/definitions", "/api/feature_flag/local_evaluation")
LEGACY_DEFINITIONS: Final = "/api/feature_flag"
"""The path that SDKs of 2021 and 2022 use for the definitions: a page of a list, without an ETag.
"""


def list_flag_definitions(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an SDK's request for definitions; 304 if its ETag is current."""
    received = exchange.received
    api_key = received.parameter("token")
    try:
        project = authorized_project(exchange)
    except ManagementError as error:
        return management_error_response(error), api_key
    body = json.dumps(definitions_for_sdks(exchange.store, project))
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    headers = {"ETag": f'W/"{digest}"', "Cache-Control": "private, must-revalidate"}
    if received.headers.get("if-none-match", "").strip().removeprefix("W/").strip('"') == digest:
        return ServiceResponse(304, "", headers=headers), api_key
    return ServiceResponse(200, body, headers=headers), api_key


def list_legacy_definitions(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an older SDK's request for definitions: a page of a list, with all flags."""
    api_key = exchange.received.parameter("token")
    try:
        project = authorized_project(exchange)
    except ManagementError as error:
        return management_error_response(error), api_key
    flags = [_legacy(flag) for flag in definitions_for_sdks(exchange.store, project)["flags"]]
    page = {"count": len(flags), "next": None, "previous": None, "results": flags}
    return ServiceResponse(200, json.dumps(page)), api_key


def flag_payload(exchange: Exchange) -> tuple[ServiceResponse, str | None]:
    """Answer an SDK's request for the payload of a flag, by its key or id.

    A flag of remote configuration without a payload has an empty body. Another flag without a
    payload is 404, as one that does not exist; in the real service, and so with `strict`, every
    other flag is.
    """
    received = exchange.received
    api_key = received.parameter("token")
    if not api_key:
        return management_error_response(not_found()), None
    try:
        project = authorized_project(exchange)
    except ManagementError as error:
        return management_error_response(error), api_key
    flag = _remote_flag(exchange, project, unquote(received.path.split("/")[-2]))
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


def authorized_project(exchange: Exchange) -> str:
    """The key of the project that a request names, once its secret key is good for it. Raises
    `ManagementError`: 401 for no secret key, an unknown one, or an unknown project; 403 for a
    personal key without the scope; 400 if no project is named.
    """
    authorization = exchange.received.headers.get("authorization", "")
    scheme, _, secret = authorization.strip().partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise not_authenticated()
    api_key = exchange.received.parameter("token")
    if not api_key:
        raise invalid("token", "This parameter is required with a personal API key.", "required")
    if not exchange.policy.keys.knows(api_key):
        raise _unauthorized("Invalid or expired API key.")
    if secret.startswith("phc_"):
        raise _unauthorized("Personal API key is invalid.")
    if not secret.startswith("phs_"):
        _check_personal_key(exchange, authorization, api_key)
    return api_key


def _check_personal_key(exchange: Exchange, authorization: str, api_key: str) -> None:
    """Raise `ManagementError` unless a personal key is good for the flags of a project."""
    database = exchange.store.connection
    if database.execute("SELECT 1 FROM personal_keys LIMIT 1").fetchone() is None:
        return
    try:
        user, scopes = authenticate(database, authorization)
        of_project = database.execute(
            "SELECT organization FROM projects WHERE api_token = ?", (api_key,)
        ).fetchone()
        if of_project is not None:
            calling_member(database, str(of_project[0]), user)
    except ManagementError:
        raise _unauthorized("Personal API key is invalid.") from None
    if scopes.isdisjoint({ALL_SCOPES, *FLAG_SCOPES}):
        raise forbidden(f"Personal API key lacks required scopes ({' or '.join(FLAG_SCOPES)}).")


def _unauthorized(detail: str) -> ManagementError:
    return ManagementError(401, ErrorType.AUTHENTICATION, "authentication_failed", detail)


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
