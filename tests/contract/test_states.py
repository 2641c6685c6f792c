"""Every row of the tables of states by plain HTTP: from which state what leads where."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.contract.calls import CalledSandbox, error_of, serving
from tests.contract.tables import rows, spans
from tests.support import management as seed
from tests.support.cases import cases
from tests.support.clock import FakeClock

PAUSING: Final = rows("Pausing")
VERIFYING: Final = rows("Verification")
INVITES: Final = [
    (row, state) for row in rows("Life of an invite") for state in row["state"].split(", ")
]
CHALLENGE: Final = "_posthog-challenge.example.com"
DAYS: Final = 3 * 24 * 3600.0
ADDRESS: Final = "ann@example.net"


@pytest.mark.parametrize("resource", ["batch-exports", "organization-batch-exports"])
@pytest.mark.parametrize("row", PAUSING, ids=lambda row: f"{row['state']}-{row['by']}")
async def test_pausing(
    row: dict[str, str], resource: str, clock: FakeClock, tmp_path: Path
) -> None:
    """Pause and unpause lead from each state to the documented one; when it was paused changes
    where documented, and only there.
    """
    async with serving(tmp_path, now=clock.now) as service:
        await service.call(
            "batch-exports " + {"not paused": "unpause", "paused": "pause"}[row["state"]]
        )
        before = (await service.call("batch-exports get")).json
        assert before["paused"] is (row["state"] == "paused")
        clock.step(1)
        assert (await service.call(f"{resource} {row['by']}")).status == 200
        after = (await service.call("batch-exports get")).json
        assert after["paused"] is (row["next"] == "paused")
        assert (after["last_paused_at"] != before["last_paused_at"]) == ("is set" in row["also"])


@cases("row", VERIFYING, ids=lambda row: f"{row['state']}-{row['by'][:30]}")
async def test_verification(row: dict[str, str], tmp_path: Path) -> None:
    """Verify leads from each state to the documented one, by what the DNS has."""
    identity = {"unverified": seed.DOMAIN, "verified": seed.VERIFIED_DOMAIN}[row["state"]]
    async with serving(tmp_path) as service:
        before = (await service.call("domains get", id=identity)).json
        if "challenge is found" in row["by"]:
            service.dns.challenges = {CHALLENGE: [before["verification_challenge"]]}
        reply = await service.call("domains verify", id=identity)
        after = (await service.call("domains get", id=identity)).json
        assert after["is_verified"] is (row["next"] == "verified")
        if row["also"].startswith("400"):
            assert error_of(reply)[:3] == (400, "validation_error", spans(row["also"])[0])
        else:
            assert (reply.status, after["verified_at"] is None) == (
                200,
                before["verified_at"] is None and not spans(row["also"]),
            )


@pytest.mark.parametrize(
    ("row", "state"), INVITES, ids=[f"{state}-{row['by']}" for row, state in INVITES]
)
async def test_life_of_an_invite(
    row: dict[str, str], state: str, clock: FakeClock, tmp_path: Path
) -> None:
    """Time, another invite and deletion lead from each state to the documented one."""
    async with serving(tmp_path, now=clock.now) as service:
        invite = (await service.call("invites create", {"target_email": ADDRESS, "level": 8})).json
        if state == "expired":
            clock.step(DAYS)
        assert await _state(service, invite["id"]) == state
        if row["by"] == "three days":
            clock.step(DAYS)
        elif row["by"] == "delete":
            assert (await service.call("invites delete", id=invite["id"])).status == 204
        else:
            another = await service.call(
                "invites create", {"target_email": ADDRESS, "combine_pending_invites": True}
            )
            assert another.json["level"] == (
                8 if "its level and access go over" in row["also"] else 1
            )
        assert await _state(service, invite["id"]) == row["next"]


async def _state(service: CalledSandbox, identity: str) -> str:
    invites = [invite for invite in await service.items("invites list") if invite["id"] == identity]
    return {True: "expired", False: "pending"}[invites[0]["is_expired"]] if invites else "gone"


def test_no_state_is_missing() -> None:
    """Each state of each table has a row for each thing that can happen to it."""
    assert {(row["state"], row["by"]) for row in PAUSING} == {
        (state, by) for state in ("not paused", "paused") for by in ("pause", "unpause")
    }
    assert sorted(row["state"] for row in VERIFYING) == ["unverified", "unverified", "verified"]
    assert sorted({state for _, state in INVITES}) == ["expired", "pending"]
    assert len(INVITES) == 5
