"""`forwarder config init`: a commented configuration file, from the examples that come with
forwarder, and the schema for editors.

Invariant: an existing file is replaced only with `--force`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from forwarder.core.error_text import error_text
from forwarder.core.errors import ConfigurationError
from forwarder.core.installation import help_on, shipped

SCHEMA_NAME: Final = "forwarder.schema.json"
_EXAMPLE_URL: Final = "https://us.i.example.com"
_ANOTHER: Final = "Name another file with --output FILE"
_STATE: Final = "/var/lib/forwarder"


class ConfigurationUse(StrEnum):
    """What a file is for; each is the name of an example."""

    SIDECAR = "sidecar"
    GATEWAY = "gateway"
    KAFKA = "kafka"
    LOGS = "logs"
    MIGRATION = "migration"
    ALL = "all"


_NEXT: Final = {
    ConfigurationUse.KAFKA: ("brokers, topics and login", "kafka"),
    ConfigurationUse.LOGS: ("the files and the mapping of their lines", "logs"),
    ConfigurationUse.MIGRATION: ("the project key", "migration"),
}
"""What else a person sets, and the document about it."""

Output = Annotated[
    Path, typer.Option("--output", metavar="FILE", help="File to write; - for standard output.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")]


def init(
    use: Annotated[
        ConfigurationUse,
        typer.Argument(
            metavar="USE", help="sidecar, gateway, kafka, logs, migration; all: every key."
        ),
    ] = (ConfigurationUse.SIDECAR),
    *,
    output: Output = Path("forwarder.yaml"),
    upstream: Annotated[
        str | None, typer.Option("--upstream", metavar="URL", help="Address of the service.")
    ] = None,
    with_schema: Annotated[
        bool,
        typer.Option(
            "--schema", help=f"Also write {SCHEMA_NAME} beside it, by which editors check it."
        ),
    ] = False,
    force: Force = False,
) -> None:
    """Write a commented configuration file to start from, and say what to do next.

    Example: forwarder config init gateway --output forwarder.yaml
    """
    from forwarder.cli.target import checked
    from forwarder.config.addresses import check_upstream

    url = _EXAMPLE_URL if upstream is None else checked("--upstream", check_upstream, upstream)
    printed = str(output) == "-"
    state = _state()
    if printed and with_schema:
        raise ConfigurationError(
            "--schema writes a file beside the configuration, which isn't a file here",
            hint=f"{_ANOTHER}.",
        )
    text = _filled_in(use, "forwarder.yaml" if printed else str(output), url, state)
    if printed:
        sys.stdout.write(text)
        return
    if with_schema:
        text = f"# yaml-language-server: $schema={SCHEMA_NAME}\n{text}"
    _write(output, text, force=force)
    if with_schema:
        write_schema(output.parent / SCHEMA_NAME, force=force)
    steps = _next_steps(use, output, text, state, given=upstream is not None)
    sys.stdout.write("".join(f"{line}\n" for line in steps))


def _filled_in(use: ConfigurationUse, name: str, url: str, state: str) -> str:
    """The example with the names of this file, service and directory."""
    text = (
        (shipped("config") / f"{use}.yaml")
        .read_text("utf-8")
        .replace(f"config/{use}.yaml", shlex.quote(name))
    )
    text = text.replace(f"${{UPSTREAM_URL:-{_EXAMPLE_URL}}}", f"${{UPSTREAM_URL:-{url}}}")
    return text.replace("\n  url: null\n", f"\n  url: {url}\n", 1).replace(_STATE, state)


def schema_text() -> str:
    """The schema of the configuration file."""
    from forwarder.config.display import json_schema

    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def write_schema(output: Path, *, force: bool) -> None:
    """Write the schema to a file, unless it is there already. Raises `ConfigurationError`."""
    text = schema_text()
    if not (output.is_file() and output.read_text("utf-8", "replace") == text):
        _write(output, text, force=force)


def _next_steps(
    use: ConfigurationUse, output: Path, text: str, state: str, *, given: bool
) -> list[str]:
    file = shlex.quote(str(output))
    what, topic = _NEXT.get(use, ("", "configuration"))
    edit = ", ".join(
        filter(None, ["" if given else "the address of the service (upstream.url)", what])
    )
    lines = [
        f"Wrote {file}.",
        *(
            [f"1. Set {edit} in it; {help_on(topic)} says more."]
            if edit
            else [f"1. {help_on(topic)} says more."]
        ),
    ]
    lines.append(f"2. Check it: forwarder config check --online --config {file}")
    if use is ConfigurationUse.MIGRATION:
        lines.append(f"3. Rehearse: forwarder import FORMAT PATH --dry-run --config {file}")
    else:
        lines.append(f"3. Start: forwarder run --config {file}")
        lines.append(f"4. Try it: forwarder send test --api-key phc_… --config {file}")
    if state != _STATE and state in text:
        lines.append(f"Its files are in {state}, because this user can't write to {_STATE}.")
    return lines


def _state() -> str:
    """The directory for buffers and dead letters: the usual one, or that of a
    user who can't write there.
    """
    from forwarder.storage.directory import state_directories

    usual = Path(_STATE)
    nearest = next(path for path in (usual, *usual.parents) if path.exists())
    if os.access(nearest, os.W_OK):
        return _STATE
    return str(next(state_directories(os.environ, is_root=False), usual))


def _write(file: Path, text: str, *, force: bool) -> None:
    """Write a text. Raises `ConfigurationError` if the file exists, unless
    `force`, or can't be written.
    """
    try:
        with file.open("w" if force else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise ConfigurationError(
            f"{file} exists already", hint=f"{_ANOTHER}, or replace it with --force."
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{file} can't be written: {error_text(error)}", hint=f"{_ANOTHER}."
        ) from error
