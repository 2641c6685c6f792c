"""`forwarder manage` as a person types it, in this process, against a sandbox with the
seed of two organizations.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from typer.testing import CliRunner

from forwarder.cli.app import app
from forwarder.cli.manage_fields import OWNERS, fields_of
from forwarder.contract.endpoints import ENDPOINTS, Endpoint
from forwarder.contract.resources import LEVELS
from tests.contract.calls import ROWS, CalledSandbox, ids_of
from tests.contract.calls import least as least_of
from tests.support import management as seed

BY_NAME: Final = {endpoint.name: endpoint for endpoint in ENDPOINTS}


@dataclass(frozen=True, slots=True)
class Typed:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its output."""
        return json.loads(self.out)


def clean(environ: Mapping[str, str] = os.environ) -> dict[str, str | None]:
    """What takes this process's own `FORWARDER_…` variables away, and gives a wide screen."""
    return {
        **{name: None for name in environ if name.startswith("FORWARDER_")},
        "COLUMNS": "200",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }


def typed(*words: str, stdin: str = "", **environ: str) -> Typed:
    """Run `forwarder manage` with these words and these settings of the section `management`."""
    settings = {f"FORWARDER_MANAGEMENT__{name.upper()}": value for name, value in environ.items()}
    result = CliRunner().invoke(app, ["manage", *words], input=stdin, env={**clean(), **settings})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Typed(result.exit_code, result.stdout, result.stderr)


async def aside(*words: str, stdin: str = "", **environ: str) -> Typed:
    """The same in a thread, where it has an event loop of its own."""
    with ThreadPoolExecutor(1) as thread:
        return await asyncio.get_running_loop().run_in_executor(
            thread, partial(typed, *words, stdin=stdin, **environ)
        )


class Manager:
    """Types commands for a running sandbox; organization, project and key are the seed's first
    unless a command says otherwise.
    """

    def __init__(self, service: CalledSandbox) -> None:
        self.service = service

    async def type(
        self, *words: str, key: str | None = seed.OWNER_KEY, stdin: str = "", **settings: str
    ) -> Typed:
        """Run a command."""
        usual = {
            "url": self.service.client.sandbox.url,
            "organization": seed.ORGANIZATION,
            "project": str(seed.PROJECT),
        }
        usual |= {} if key is None else {"api_key": key}
        return await aside(*words, stdin=stdin, **{**usual, **settings})

    async def call(
        self,
        name: str,
        *more: str,
        other: bool = False,
        ids: Mapping[str, object] | None = None,
        data: Any = None,
        **options: Any,
    ) -> Typed:
        """Run the command of an endpoint with the least that it needs, or with these data.
        `other`: for the other organization's things.
        """
        words = line(name, other=other, ids=ids, body=... if data is None else {})
        return await self.type(
            *words, *([] if data is None else ["--data", json.dumps(data)]), *more, **options
        )


def least(name: str) -> dict[str, Any]:
    """The least body that a command takes."""
    return _CHANGES.get(name) or least_of(ROWS[name]) or {}


_CHANGES: Final[dict[str, dict[str, Any]]] = {
    "domains update": {"saml_entity_id": "https://login.example.com"},
    "batch-exports update": {"interval": "day"},
}
"""The command wants a change, where the endpoint is content with none."""


def line(
    name: str, *, other: bool = False, ids: Mapping[str, object] | None = None, body: Any = ...
) -> list[str]:
    """The words of an endpoint's command, all ids named; `...`: with the least body."""
    endpoint = BY_NAME[name]
    row = ROWS[name]
    every = {**ids_of(row, other=other), **(ids or {})}
    words = [
        *name.split(),
        *(str(value) for parameter, value in every.items() if parameter not in OWNERS),
    ]
    for parameter, option in OWNERS.items():
        words += [f"--{option}", str(every[parameter])] if parameter in every else []
    words += options(endpoint, least(name) if body is ... else body)
    return [*words, *(["--yes"] if endpoint.destructive else []), "--output", "json"]


def options(endpoint: Endpoint[Any, Any], body: Mapping[str, Any]) -> list[str]:
    """A body as options, each value as a person types it."""
    words: list[str] = []
    for field in fields_of(endpoint):
        if field.name in body:
            value = body[field.name]
            if isinstance(value, bool):
                words.append(field.option if value else f"--no-{field.option.removeprefix('--')}")
            else:
                words += [
                    word
                    for entry in _each(value)
                    for word in (field.option, LEVELS[entry] if field.name == "level" else entry)
                ]
    return words


def _each(value: Any) -> list[Any]:
    return (
        value
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        else [_text(value)]
    )


def _text(value: Any) -> Any:
    return value if isinstance(value, str | int) else json.dumps(value)
