"""Flags decided by SDKs from the sandbox's definitions, through forwarder, against the sandbox's
own answers.

The newest posthog for Python is tried in `tests/end_to_end/test_flags.py`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pytest

from tests.sdks.conftest import ready
from tests.sdks.installing import folder
from tests.sdks.rig import KEY, LIMIT, SECRET, chain
from tests.support.flag_answers import (
    DECIDE,
    FLAGS,
    FlagAnswers,
    ask_all,
    define,
    differences,
    of_those_answered,
)
from tests.support.flags import FlagMaker, FlagProject, Visitor, visitors

SEED: Final = 2
VISITORS: Final = 1000
ASKED: Final = 20
"""Visitors of whom the SDK also asks the service."""
SLOW: Final = {
    "FORWARDER_PASSTHROUGH__CONNECT_TIMEOUT": "10s",
    "FORWARDER_PASSTHROUGH__FLAGS_TIMEOUT": "20s",
}
_TEXTS: Final = frozenset(
    (
        "icontains",
        "not_icontains",
        "starts_with",
        "not_starts_with",
        "ends_with",
        "not_ends_with",
        "regex",
        "not_regex",
    )
)
_NUMBERS: Final = frozenset(("gt", "gte", "lt", "lte"))
_DATES: Final = frozenset(("is_date_before", "is_date_after"))
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class DecidingSdk:
    """An SDK, and how its program is started from its folder."""

    name: str
    sdk: str
    command: tuple[str, ...]
    simple: bool
    """Whether it gets flags of its own, made of what it knows (`tests.support.flags`)."""


SDKS: Final = [
    DecidingSdk("node", "node", ("node", "flags.mjs"), simple=False),
    DecidingSdk("go", "go", ("./program", "flags"), simple=True),
    *(
        DecidingSdk(
            f"python-{old}", "older-python", (f"venv-{old}/bin/python", "flags.py"), simple=True
        )
        for old in ("3.7", "6.9")
    ),
]

Excepted = Callable[[dict[str, Any], Any], bool]
"""Whether an SDK decides a flag's only condition, given a visitor's value, otherwise than the
others and the service.
"""


def _is_or_needs(flag: dict[str, Any], family: str) -> bool:
    """Whether a flag is of a family, or depends on one that is."""
    needed = [
        condition["key"]
        for group in flag["filters"]["groups"]
        for condition in group["properties"]
        if condition["type"] == "flag"
    ]
    return any(key.startswith(f"{family}-") for key in (flag["key"], *needed))


def _without_enrollment(flag: dict[str, Any], _value: Any) -> bool:
    """posthog-node 5.70 and older SDKs don't know `feature_enrollment` (posthog 7.91 does): they
    look at the conditions, also for a flag that depends on one.
    """
    return _is_or_needs(flag, "enrolled")


def _without_devices(flag: dict[str, Any], _value: Any) -> bool:
    """posthog-go 1.5 and older SDKs for Python hash the person, whatever `bucketing_identifier`
    says.
    """
    return _is_or_needs(flag, "device")


def _requires_another_off(flag: dict[str, Any], _value: Any) -> bool:
    """posthog 6.9 for Python has each needed flag on, also where it must be off."""
    return any(
        condition["type"] == "flag" and condition["value"] is False
        for group in flag["filters"]["groups"]
        for condition in group["properties"]
    )


def _compares_texts(flag: dict[str, Any], value: Any) -> bool:
    """posthog-node 5.70 compares what isn't a number as texts, and reads the number that a text
    begins with; for the service and posthog 7.91 such a value matches nothing.
    """
    number = (isinstance(value, int | float) and not isinstance(value, bool)) or (
        isinstance(value, str) and _NUMBER.fullmatch(value)
    )
    return _operator(flag) in _NUMBERS and not number


def _spells_otherwise(flag: dict[str, Any], value: Any) -> bool:
    """posthog-node 5.70 spells values that aren't texts as JavaScript does (`[object Object]`,
    `tea,1`, `1` for 1.0); the service and posthog 7.91 as JSON.
    """
    operator = _operator(flag)
    return (operator in _TEXTS or operator.startswith("semver_")) and not isinstance(
        value, str | bool | None
    )


def _reads_dates_otherwise(flag: dict[str, Any], value: Any) -> bool:
    """posthog-node 5.70 reads dates as JavaScript does: 30 February is 1 March, a
    number is milliseconds. For the service it is no date, and seconds; posthog 7.91
    leaves them to the service.
    """
    try:
        return _operator(flag) in _DATES and datetime.fromisoformat(str(value)) is None
    except ValueError:
        return True


EXCEPTIONS: Final[Mapping[bool, tuple[Excepted, ...]]] = {
    False: (_without_enrollment, _compares_texts, _spells_otherwise, _reads_dates_otherwise),
    True: (_without_enrollment, _without_devices, _requires_another_off),
}
"""What posthog-node decides in its own way, and what SDKs do that get simple flags."""


def _operator(flag: dict[str, Any]) -> str:
    return (
        str(flag["filters"]["groups"][0]["properties"][0]["operator"])
        if flag["key"].startswith("operator-")
        else ""
    )


def _usual(
    project: FlagProject, visitor: Visitor, decided: FlagAnswers, exceptions: Sequence[Excepted]
) -> FlagAnswers:
    """What an SDK decided, without the exceptions."""

    def excepted(key: str) -> bool:
        flag = project.by_key[key]
        value = (
            visitor.person_properties.get(flag["filters"]["groups"][0]["properties"][0]["key"])
            if _operator(flag)
            else None
        )
        return any(differs(flag, value) for differs in exceptions)

    return FlagAnswers(
        {key: value for key, value in decided.values.items() if not excepted(key)}, decided.payloads
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("deciding", [pytest.param(sdk, id=sdk.name) for sdk in SDKS])
async def test_the_sdk_decides_as_the_service_does(deciding: DecidingSdk, tmp_path: Path) -> None:
    """Of 1,000 visitors: what the SDK decides is what `/flags` and `/decide` answer; and it reads
    from an answer what that says.
    """
    ready(deciding.sdk)
    project = FlagMaker(SEED, simple=deciding.simple).project()
    people = visitors(VISITORS, SEED)
    async with chain(tmp_path / "sandbox.sqlite", None, **SLOW) as tried:
        session = tried.client
        direct = tried.service.url
        await define(session, direct, KEY, project)
        said = await _said(deciding, tried.host, people)
        answered = await ask_all(session, direct, KEY, FLAGS, people)
        assert await ask_all(session, tried.host, KEY, DECIDE, people[::10]) == answered[::10]
    decided = of_those_answered(
        project,
        [FlagAnswers(report["flags"], _payloads(deciding, report["payloads"])) for report in said],
    )
    decided = [
        _usual(project, visitor, answers, EXCEPTIONS[deciding.simple])
        for visitor, answers in zip(people, decided, strict=True)
    ]
    assert differences(decided, answered, people) == []
    assert sum(len(answers.values) for answers in decided) > 0.6 * VISITORS * len(project.answered)
    assert {frozenset(answers.values) for answers in answered} == {project.answered}
    from_sdk = [_comparable(report["answered"]["flags"]) for report in said[:ASKED]]
    assert from_sdk == [_comparable(answers.values) for answers in answered[:ASKED]]


def _comparable(values: Mapping[str, Any]) -> dict[str, Any]:
    """What an SDK was answered, without the odd values: it sends some of them in another form, as
    JavaScript 1.0 as 1.
    """
    return {
        key: value
        for key, value in values.items()
        if not (key.startswith("operator-") and key.endswith("-2"))
    }


def _payloads(deciding: DecidingSdk, payloads: dict[str, Any]) -> dict[str, Any]:
    """Payloads as values: posthog-node reads them, the others give them as the definition has them
    (posthog-go empty ones too).
    """
    return (
        payloads
        if deciding.sdk == "node"
        else {key: json.loads(payload) for key, payload in payloads.items() if payload}
    )


async def _said(
    deciding: DecidingSdk, host: str, people: Sequence[Visitor]
) -> list[dict[str, Any]]:
    """What a program of the SDK says of each visitor."""
    arguments = ("--host", host, "--key", KEY, "--secret-key", SECRET, "--asked", str(ASKED))
    process = await asyncio.create_subprocess_exec(
        *deciding.command,
        *arguments,
        cwd=folder(deciding.sdk),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    lines = [json.dumps(visitor.request).encode() + b"\n" for visitor in people]
    async with asyncio.timeout(LIMIT):
        output, errors = await process.communicate(b"".join(lines))
    assert process.returncode == 0, errors.decode()
    return [json.loads(line) for line in output.splitlines()]
