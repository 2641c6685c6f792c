"""A project's flags in a sandbox, and what is answered about them: by its endpoints, and by the
Python SDK from the definitions alone.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from posthog import Posthog
from posthog.request import reset_sessions

from tests.support.flags import FlagProject, Visitor

SECRET: Final = "phx_flagFlagPersonalKey0123456"
DECIDE: Final = "/decide?v=3"
FLAGS: Final = "/flags/?v=2"
_AT_ONCE: Final = 8

Value = bool | str
"""What a flag is for a visitor: off, on, or a variant."""


@dataclass(frozen=True, slots=True)
class FlagAnswers:
    """The values of a visitor's flags, and the payloads of those that have one."""

    values: Mapping[str, Value]
    payloads: Mapping[str, Any]
    failed: bool = False
    """Whether some flag could not be computed."""


async def define(session: aiohttp.ClientSession, url: str, key: str, project: FlagProject) -> None:
    """Give a sandbox's project these flags and cohorts, and its types of groups in their order."""
    await _send(
        session, "PUT", f"{url}/sandbox/group-types?api_key={key}", list(project.group_types)
    )
    for cohort in project.cohorts:
        await _send(session, "PUT", f"{url}/sandbox/cohorts/{cohort['id']}?api_key={key}", cohort)
    for flag in project.flags:
        await set_flag(session, url, key, flag)


async def set_flag(
    session: aiohttp.ClientSession, url: str, key: str, flag: Mapping[str, Any]
) -> None:
    """Set one flag."""
    await _send(
        session, "PUT", f"{url}/sandbox/flags/{quote(flag['key'], safe='')}?api_key={key}", flag
    )


async def ask_all(
    session: aiohttp.ClientSession, url: str, key: str, path: str, visitors: Iterable[Visitor]
) -> list[FlagAnswers]:
    """What a path answers about each visitor."""
    permits = asyncio.Semaphore(_AT_ONCE)

    async def ask_about(visitor: Visitor) -> FlagAnswers:
        async with permits:
            return await ask(session, url, key, path, visitor.request)

    return await asyncio.gather(*(ask_about(visitor) for visitor in visitors))


async def ask(
    session: aiohttp.ClientSession,
    url: str,
    key: str,
    path: str,
    request: Mapping[str, Any],
    **headers: str,
) -> FlagAnswers:
    """What `/decide?v=3` or `/flags/?v=2` answers."""
    body = await _send(session, "POST", url + path, {"api_key": key, **request}, headers)
    return read_flags(body) if "flags" in body else read_decide(body)


def read_decide(body: Mapping[str, Any]) -> FlagAnswers:
    """An answer of `/decide` of version 3."""
    payloads = {key: json.loads(payload) for key, payload in body["featureFlagPayloads"].items()}
    return FlagAnswers(body["featureFlags"], payloads, body["errorsWhileComputingFlags"])


def read_flags(body: Mapping[str, Any]) -> FlagAnswers:
    """An answer of `/flags` of version 2."""
    values = {}
    payloads = {}
    for key, flag in body["flags"].items():
        assert flag["key"] == key
        assert flag["enabled"] or flag["variant"] is None
        values[key] = flag["variant"] or flag["enabled"]
        if flag["metadata"]["payload"] is not None:
            payloads[key] = json.loads(flag["metadata"]["payload"])
    return FlagAnswers(values, payloads, body["errorsWhileComputingFlags"])


async def _send(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: Mapping[str, Any] | list[str],
    headers: Mapping[str, str] | None = None,
) -> Any:
    data = io.BytesIO(json.dumps(body).encode())
    async with session.request(
        method, url, data=data, headers={"Content-Type": "application/json", **(headers or {})}
    ) as response:
        assert response.status in {200, 201}, (
            f"{method} {url}: {response.status} {await response.text()}"
        )
        return await response.json()


@contextmanager
def python_sdk(host: str, key: str, secret: str | None = SECRET) -> Iterator[Posthog]:
    """The SDK, closed at the end. With a secret key it has fetched the definitions; without, it
    asks the service.
    """
    client = Posthog(
        key,
        host=host,
        secret_key=secret,
        enable_local_evaluation=False,
        feature_flags_request_timeout_seconds=30,
        send=False,
    )
    try:
        if secret is not None:
            client.load_feature_flags()  # type: ignore[no-untyped-call]
            assert client.feature_flags, "the SDK has no definitions"
        yield client
    finally:
        client.shutdown()
        reset_sessions()


def decide(
    client: Posthog, visitors: Sequence[Visitor], *, locally: bool = True
) -> list[FlagAnswers]:
    """What the SDK says about each visitor: from the definitions alone, where flags that it can't
    decide are absent, or as it is set.
    """
    return [_decide(client, visitor, locally=locally) for visitor in visitors]


def _decide(client: Posthog, visitor: Visitor, *, locally: bool) -> FlagAnswers:
    said = client.get_all_flags_and_payloads(
        visitor.distinct_id,
        groups=visitor.groups,
        person_properties=visitor.person_properties,
        group_properties=visitor.group_properties,
        only_evaluate_locally=locally,
        disable_geoip=True,
        device_id=visitor.person_properties.get("$device_id"),
    )
    payloads = {
        key: json.loads(payload) for key, payload in (said["featureFlagPayloads"] or {}).items()
    }
    return FlagAnswers(said["featureFlags"] or {}, payloads)


def of_those_answered(project: FlagProject, decided: Sequence[FlagAnswers]) -> list[FlagAnswers]:
    """What an SDK decided of the flags that the service answers a server. Raises `AssertionError`
    if it has an inactive one on.
    """
    inactive = {key for key, flag in project.by_key.items() if not flag["active"]}
    answers = []
    for decision in decided:
        assert not any(decision.values.get(key) for key in inactive)
        values = {key: value for key, value in decision.values.items() if key in project.answered}
        answers.append(FlagAnswers(values, decision.payloads))
    return answers


def differences(
    expected: Sequence[FlagAnswers], answered: Sequence[FlagAnswers], visitors: Sequence[Visitor]
) -> list[str]:
    """Where answers differ from what an SDK decided; flags that it couldn't decide
    count nothing.
    """
    mismatches = []
    for visitor, decided, got in zip(visitors, expected, answered, strict=True):
        for key, value in decided.values.items():
            one = (value, decided.payloads.get(key))
            other = (got.values.get(key), got.payloads.get(key))
            if one != other or type(value) is not type(got.values.get(key)):
                mismatches.append(
                    f"{key} of {visitor.distinct_id}: expected {one}, answered {other}; "
                    f"{visitor.person_properties} {visitor.groups}"
                )
    return mismatches
