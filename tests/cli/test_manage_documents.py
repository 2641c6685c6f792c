"""docs/how-to/manage.md says what the commands are; its examples work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from string import Template
from typing import Final

import pytest

from forwarder.cli.manage_fields import OWNERS
from forwarder.contract.endpoints import ENDPOINTS
from forwarder.sandbox import SandboxOptions
from tests.cli.managing import aside
from tests.contract.calls import Challenges
from tests.sandbox.client import SandboxClient, talking
from tests.support.documents import text_of

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = text_of("manage", "manage-commands")
ORGANIZATION: Final = "01900000-0000-7000-8000-000000000001"
KEY: Final = "phx_sandbox_olga_everything_0001"


def commands() -> list[str]:
    """The rows of the table of commands."""
    rows = []
    for endpoint in ENDPOINTS:
        ids = " ".join(
            parameter.name.replace("__", "_").upper()
            for parameter in endpoint.parameters
            if parameter.name not in OWNERS
        )
        rows.append(
            f"| `{' '.join(filter(None, (endpoint.name, ids)))}` | `{endpoint.scope}` | "
            f"{endpoint.summary} |"
        )
    return rows


def examples() -> str:
    """What stands in the page to be typed, in order; without the set-up, which the
    test has made.
    """
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return "".join(
        block for language, block in blocks if not language and "forwarder manage" in block
    )


def test_there_are_examples() -> None:
    """Those that the next test runs: lines of commands, and nothing else."""
    lines = examples().splitlines()
    assert len(lines) > 10
    assert all(line.removeprefix("cat key | ").startswith("forwarder manage ") for line in lines)


def test_every_command_is_there_with_its_scope() -> None:
    """The table is the contract's, in its order."""
    assert (
        re.findall(r"^\| `[a-z-]+ [a-z]+[A-Z_ ]*` \| `[a-z_]+:.*$", PAGE, re.MULTILINE)
        == commands()
    )


async def test_the_examples_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed one after the other, against a sandbox with the sample seed, each succeeds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "invites.json").write_text(
        '[{"target_email": "ada@example.org"}, {"target_email": "alan@example.org"}]'
    )
    (tmp_path / "destination.json").write_text(
        '{"type": "S3", "config": {"bucket_name": "b", "aws_secret_access_key": "hidden"}}'
    )
    (tmp_path / "key").write_text(f"{KEY}\n")
    dns = Challenges()
    async with talking(
        SandboxOptions(seed=ROOT / "config" / "sandbox-seed.yaml", resolver=dns)
    ) as client:
        usual = {
            "url": client.sandbox.url,
            "api_key_file": str(tmp_path / "key"),
            "organization": ORGANIZATION,
            "project": "1",
        }
        known = await ids(client)
        for domain in (await client.get("/sandbox/domains"))["results"]:
            dns.challenges[f"_posthog-challenge.{domain['domain']}"] = [
                domain["verification_challenge"]
            ]
        for example in examples().splitlines():
            command, _, _ = (
                Template(example).substitute(known).removeprefix("cat key | ").partition(" > ")
            )
            done = await aside(*shlex.split(command)[2:], stdin=f"{KEY}\n", **usual)
            assert (done.code, done.err) == (0, ""), example


async def ids(client: SandboxClient) -> dict[str, str]:
    """What the examples call by the names of variables."""
    headers = {"Authorization": f"Bearer {KEY}"}
    owner = f"/api/organizations/{ORGANIZATION}"
    members, domains = [
        (await client.ask("GET", f"{owner}/{what}/", None, headers)).json["results"]
        for what in ("members", "domains")
    ]
    exports = (await client.get("/sandbox/batch-exports"))["results"]
    member = next(
        membership["user"]["uuid"]
        for membership in members
        if membership["user"]["email"] == "mia@example.com"
    )
    return {
        "MEMBER": member,
        "DOMAIN": next(domain["id"] for domain in domains if not domain["is_verified"]),
        "EXPORT": exports[0]["id"],
    }
