"""Flags for tests of a sandbox: how they are set, and what is answered about a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.sandbox.client import KEY, SandboxClient, SandboxReply

SECRET = {"Authorization": "Bearer phx_secret_of_somebody"}


def person_is(
    key: str, value: Any, operator: str = "exact", kind: str = "person"
) -> dict[str, Any]:
    """A condition on one property."""
    return {"key": key, "value": value, "operator": operator, "type": kind}


def flag(*conditions: Mapping[str, Any], **filters: Any) -> dict[str, Any]:
    """A flag for anyone who meets all these conditions."""
    return {
        "filters": {
            "groups": [{"properties": list(conditions), "rollout_percentage": 100}],
            **filters,
        }
    }


async def put(client: SandboxClient, path: str, content: Any, **headers: str) -> SandboxReply:
    """Set a flag or a cohort."""
    sent = {
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return await client.ask(
        "PUT", f"/sandbox/{path}?api_key={KEY}", json.dumps(content).encode(), sent
    )


async def define(client: SandboxClient, **flags: Mapping[str, Any]) -> None:
    """Set flags; `_` in a key is a hyphen."""
    for key, content in flags.items():
        reply = await put(client, f"flags/{key.replace('_', '-')}", content)
        assert reply.status == 200, reply.text


async def values(
    client: SandboxClient,
    distinct_id: str = "ann",
    *,
    headers: Mapping[str, str] | None = None,
    **body: Any,
) -> dict[str, Any]:
    """The values of a person's flags by the contract's version. `anonymous`
    is the distinct id before.
    """
    if "anonymous" in body:
        body["$anon_distinct_id"] = body.pop("anonymous")
    sent = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
    reply = await client.ask(
        "POST",
        "/decide/?v=3",
        json.dumps({"api_key": KEY, "distinct_id": distinct_id, **body}).encode(),
        sent,
    )
    assert reply.status == 200, reply.text
    flags: dict[str, Any] = reply.json["featureFlags"]
    return flags
