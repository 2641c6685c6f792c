"""What `forwarder manage domains` says beyond the service's answer: that a domain isn't verified,
and what was not applied.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.managing import Manager
from tests.contract.calls import serving
from tests.support import management as seed


@pytest.mark.parametrize("strict", [False, True])
async def test_verify_says_whether_it_did(tmp_path: Path, strict: bool) -> None:
    """The service answers 200 though the challenge isn't found: the command exits with 1 and says
    which record is missing; then with 0.
    """
    async with serving(tmp_path, strict=strict) as service:
        manager = Manager(service)
        domain = (await manager.call("domains get", "--output", "json")).json
        for output in ("table", "json"):
            failed = await manager.call("domains verify", "--output", output)
            assert failed.code == 1
            assert "Done" not in failed.out
            assert f"_posthog-challenge.{domain['domain']}" in failed.err
            assert domain["verification_challenge"] in failed.err
        service.dns.challenges = {
            f"_posthog-challenge.{domain['domain']}": [domain["verification_challenge"]]
        }
        done = await manager.call("domains verify")
        assert (done.code, done.err) == (0, "")


async def test_what_is_ignored_is_reported(tmp_path: Path) -> None:
    """What a new domain can't have yet, and what the call doesn't accept, is said on stderr; what
    is only written otherwise isn't.
    """
    async with serving(tmp_path) as service:
        manager = Manager(service)
        data = {
            "domain": "NEW.Example.net",
            "jit_provisioning_enabled": True,
            "sso_enforcement": "saml",
            "is_verified": True,
        }
        made = await manager.call("domains create", "--output", "json", data=data)
        assert (made.code, made.json["domain"]) == (0, "new.example.net")
        assert made.err.splitlines() == [
            "Ignored: is_verified. domains create does not accept it.",
            (
                "Not applied: jit_provisioning_enabled, sso_enforcement. Verify the domain, then "
                "set them with domains update."
            ),
        ]
        changed = await manager.call(
            "domains update", ids={"id": made.json["id"]}, data={"saml_entity_id": "x"}
        )
        assert (changed.code, changed.err) == (0, "")
        project = await manager.call("projects create", data={"name": "p", "id": 7})
        assert "Ignored: id." in project.err


async def test_nothing_is_reported_where_all_is_applied(tmp_path: Path) -> None:
    """A verified domain takes everything."""
    async with serving(tmp_path) as service:
        data = {"jit_provisioning_enabled": True, "sso_enforcement": "saml"}
        line = ["domains", "update", seed.VERIFIED_DOMAIN, "--data", json.dumps(data)]
        done = await Manager(service).type(*line)
        assert (done.code, done.err) == (0, "")
