"""schemathesis over `/openapi.json`: whatever it makes up, no answer is a 500 or off the document,
and every operation succeeds at times.

It runs as a command, in a process of its own: as a plugin of pytest it would bring its own threads
and connections into ours.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from forwarder.sandbox import Sandbox
from forwarder.sandbox.manage.dns import StaticResolver
from forwarder.sandbox.openapi import document
from tests.support import management as seed
from tests.support.repository import ROOT

HOOKS: Final = "tests.sandbox.openapi.schemathesis_checks"
"""Not imported here: schemathesis takes a second to import."""
ANSWERED: Final = "ANSWERED"
"""The variable that says where to list what was answered."""
CHECKS: Final = (
    *(
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
    ),
    *("response_schema_conformance", "a_body_only_where_described"),
)
EXISTING: Final[Mapping[str, Mapping[str, object]]] = {
    "": {
        "organization_id": seed.ORGANIZATION,
        "project_id": seed.PROJECT,
        "token": seed.TOKEN,
        "project": seed.TOKEN,
    },
    "sandbox": {"id": seed.COHORT, "key": seed.FLAG, "api_key": seed.TOKEN},
    "sdk": {"key": "limits"},
    "organization-batch-exports": {"id": seed.EXPORT},
    "domains": {"id": seed.DOMAIN},
    "invites": {"id": seed.INVITE},
    "members": {"user__uuid": seed.MEMBER},
    "projects": {"id": seed.SECOND_PROJECT},
    "batch-exports": {"id": seed.EXPORT},
    "sandbox-batch-exports": {"id": seed.EXPORT},
    "sandbox-batch-export-runs": {"id": seed.RUN},
    "batch-export-runs": {"batch_export_id": seed.EXPORT, "id": seed.RUN},
}
"""Ids of what the seed has, by the operations' tag (none: all) and the parameter's name."""
EXISTING_AT: Final = {
    "/sandbox/batch-export-runs/": {"id": seed.RUN},
    "/sandbox/batch-exports/": {"id": seed.EXPORT},
}
"""The same by a pattern of the operations' path."""


MANAGEMENT: Final = "^/api/(organizations|environments)/"
THE_REST: Final = "^/(capture|decide|i/v1|sandbox/(events|requests|rates|flags|evaluations))"
"""Each kind of the others once: many take events alike, or list what there is."""


def settings(*, existing: bool, mode: str) -> str:
    """The configuration of a run: whether ids are of what exists, and whether what is sent is
    valid (`positive`) or not, or `all`.
    """
    keys = {"personalKey": seed.OWNER_KEY, "secretKey": seed.OWNER_KEY, "projectKey": seed.TOKEN}
    lines = [
        "color = false",
        "warnings = false",
        'suppress-health-check = ["all"]',
        "continue-on-failure = true",
    ]
    lines += ["[cache]", "enabled = false", "[generation]", 'database = "none"', f'mode = "{mode}"']
    lines += ["[auth.openapi]", *(f'{name} = {{ bearer = "{key}" }}' for name, key in keys.items())]
    for tag, ids in EXISTING.items() if existing else ():
        lines += (
            ["[[operations]]", f'include-tag = "{tag}"', "[operations.parameters]"]
            if tag
            else ["[parameters]"]
        )
        lines += [
            f"{name} = {json.dumps(value)}" for name, value in {**EXISTING[""], **ids}.items()
        ]
    for path, at in EXISTING_AT.items() if existing else ():
        lines += [
            "[[operations]]",
            f"include-path-regex = {json.dumps(path)}",
            "[operations.parameters]",
        ]
        lines += [f"{name} = {json.dumps(value)}" for name, value in at.items()]
    return "\n".join(lines)


async def add_remote_flag(sandbox: Sandbox) -> None:
    """Set a flag of remote configuration, the only kind whose payload can be asked for."""
    flag = {"is_remote_configuration": True, "filters": {"payloads": {"true": "7"}}}
    path = f"/sandbox/flags/{EXISTING['sdk']['key']}?api_key={seed.TOKEN}"
    async with (
        aiohttp.ClientSession() as session,
        session.put(sandbox.url + path, json=flag) as response,
    ):
        assert response.status == 200


async def fuzz(
    sandbox: Sandbox, folder: Path, *options: str, existing: bool, mode: str
) -> tuple[int, str, Counter[tuple[str, str]]]:
    """Run schemathesis against a sandbox: its exit code, what it said, and how often each
    operation gave each status.
    """
    configuration = folder / "schemathesis.toml"
    answered = folder / "answered.txt"
    configuration.write_text(settings(existing=existing, mode=mode))
    answered.touch()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration)),
        *("run", f"{sandbox.url}/openapi.json", "--checks", ",".join(CHECKS), *options),
        cwd=ROOT,
        env={**os.environ, "SCHEMATHESIS_HOOKS": HOOKS, ANSWERED: str(answered)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    lines = answered.read_text().splitlines()
    return (
        process.returncode,
        said.decode(),
        Counter((name, status) for name, status in map(str.split, lines)),
    )


def without_success(
    answers: Mapping[tuple[str, str], int],
    paths: Mapping[str, Mapping[str, Any]],
    left_out: Collection[str] = (),
) -> list[str]:
    """The operations that never succeeded, though the document says how they would."""
    operations = [
        operation
        for methods in paths.values()
        for method, operation in methods.items()
        if method not in left_out
    ]
    return [
        operation["operationId"] for operation in operations if not _succeeded(operation, answers)
    ]


def _succeeded(operation: Mapping[str, Any], answers: Mapping[tuple[str, str], int]) -> bool:
    good = [status for status in operation["responses"] if status < "300"]
    return not good or any((operation["operationId"], status) in answers for status in good)


@dataclass(frozen=True, slots=True)
class SchemathesisRun:
    """A run of schemathesis: how, and over which operations (a pattern of paths)."""

    options: tuple[str, ...]
    paths: str = "^/"
    existing: bool = True
    strict: bool = False
    mode: str = "all"


FUZZING: Final = ("--phases", "fuzzing", "--exclude-method", "DELETE", "--max-examples")
"""Nothing is removed, so that what exists is there for every operation. Their examples are as many
as it takes for every operation of `TO_SUCCEED` to succeed, twice over.
"""
# without /sandbox/wait, which answers late; faults would reach the others; the clock and backfills
# make very many runs
RUNS: Final = {
    "boundaries-of-organizations": SchemathesisRun(
        ("--phases", "coverage"), "^/api/organizations/"
    ),
    "boundaries-of-environments": SchemathesisRun(("--phases", "coverage"), "^/api/environments/"),
    "boundaries-of-the-rest": SchemathesisRun(("--phases", "coverage"), THE_REST),
    "fuzzing": SchemathesisRun(
        (*FUZZING, "4"),
        (
            "^/(?!api/(organizations|environments)|sandbox/(wait|faults|clock|.*/(terminate|backfi"
            "ll)))"
        ),
    ),
    "fuzzing-faults": SchemathesisRun((*FUZZING, "40"), "^/sandbox/faults"),
    "fuzzing-management": SchemathesisRun((*FUZZING, "6"), MANAGEMENT),
    "fuzzing-strict": SchemathesisRun((*FUZZING, "2"), MANAGEMENT, strict=True, mode="positive"),
    "fuzzing-ids": SchemathesisRun((*FUZZING, "3"), MANAGEMENT, existing=False),
}
USUAL: Final = ("fuzzing", "fuzzing-strict", "boundaries-of-environments")
"""The runs of `make test`: the others send more of the same."""
TO_SUCCEED: Final = (
    "boundaries-of-organizations",
    "boundaries-of-environments",
    "fuzzing",
    "fuzzing-strict",
)
"""The runs in which every operation has to succeed now and then."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.long) for name in RUNS],
)
async def test_answers_are_as_described(name: str, tmp_path: Path) -> None:
    """Of thousands of requests that schemathesis makes up, valid and not, every answer's status,
    kind and body are in the document.
    """
    run = RUNS[name]
    options = (*run.options, "--include-path-regex", run.paths, "--seed", "7")
    async with Sandbox(
        seed.seeded(tmp_path, strict=run.strict, resolver=StaticResolver({}))
    ) as sandbox:
        await add_remote_flag(sandbox)
        code, said, answers = await fuzz(
            sandbox, tmp_path, *options, existing=run.existing, mode=run.mode
        )
    assert code == 0, said
    paths = {
        path: methods
        for path, methods in document(strict=run.strict)["paths"].items()
        if re.search(run.paths, path)
    }
    if name in TO_SUCCEED:
        assert without_success(answers, paths, ("delete",) if "DELETE" in run.options else ()) == []
