"""The verification of domains: what the DNS must say, and what happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from forwarder.contract.endpoints import CREATE_DOMAIN, DELETE_DOMAIN, GET_DOMAIN, VERIFY_DOMAIN
from forwarder.sandbox.management.call import Handler, ManagementError, Resolver, Result
from forwarder.sandbox.management.resolving import LIFETIME, StaticResolver
from forwarder.sandbox.management.verification import LIMIT, async_handlers, challenge_name
from tests.sandbox.management.half import Half, Somebody

NOW = "2026-01-01T00:00:00.000000Z"


class Meanwhile:
    """A resolver that answers with `texts`, after something else has happened."""

    def __init__(self, texts: Sequence[str], happens: Callable[[], object]) -> None:
        self._texts, self._happens = texts, happens

    async def texts(self, name: str) -> Sequence[str]:
        """The texts. Nothing to cancel."""
        self._happens()
        return self._texts


class Silent:
    """A resolver that never answers."""

    def __init__(self) -> None:
        self.asked, self.cancelled = asyncio.Event(), False

    async def texts(self, name: str) -> Sequence[str]:
        """Nothing, ever. Cancellation is noted."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True
        return []


@pytest.fixture
def domain(half: Half) -> dict[str, Any]:
    """A domain that isn't verified."""
    return half.answer(CREATE_DOMAIN, {"domain": "example.com"})


async def verify(half: Half, identity: str, resolver: Resolver, *, by: Somebody | None = None, strict: bool = False) -> Result:
    """What the verification answers. Cancelled it is cancelled."""

    async def run(handler: Handler) -> Any:
        assert not half.database.in_transaction
        return half.call(VERIFY_DOMAIN, by=by, strict=strict, handler=handler, id=identity)

    return await async_handlers(resolver, limit=0.05)[VERIFY_DOMAIN](run)


def saying(domain: dict[str, Any], *texts: str) -> StaticResolver:
    """A DNS that has these texts for the domain's challenge."""
    return StaticResolver({f"_posthog-challenge.{domain['domain']}": texts})


def holding(domain: dict[str, Any]) -> StaticResolver:
    """A DNS that has the domain's challenge."""
    return saying(domain, "v=spf1 -all", domain["verification_challenge"])


def is_verified(half: Half, domain: dict[str, Any]) -> bool:
    """Whether a domain is verified now."""
    return half.answer(GET_DOMAIN, id=domain["id"])["is_verified"] is True


async def test_a_domain_with_its_challenge_in_the_dns_becomes_verified(half: Half, domain: dict[str, Any]) -> None:
    """It is said when; there is no body."""
    assert await verify(half, domain["id"], holding(domain)) is None
    assert half.answer(GET_DOMAIN, id=domain["id"]) == {**domain, "is_verified": True, "verified_at": NOW}


async def test_the_real_service_answers_with_the_domain(half: Half, domain: dict[str, Any]) -> None:
    """Verified or not."""
    assert await verify(half, domain["id"], saying(domain), strict=True) == domain
    assert await verify(half, domain["id"], holding(domain), strict=True) == {**domain, "is_verified": True, "verified_at": NOW}


@pytest.mark.parametrize("texts", [(), ("",), ("something else",), ("{0}x",), ("x{0}",)])
async def test_a_challenge_that_is_not_there_changes_nothing(half: Half, domain: dict[str, Any], texts: Sequence[str]) -> None:
    """No record, another one, or one that only contains it: no error either."""
    resolver = saying(domain, *(text.format(domain["verification_challenge"]) for text in texts))
    assert await verify(half, domain["id"], resolver) is None
    assert half.answer(GET_DOMAIN, id=domain["id"]) == domain


async def test_the_challenge_counts_at_its_name_only(half: Half, domain: dict[str, Any]) -> None:
    """Not at the domain itself; blanks around it are no matter."""
    assert challenge_name("example.com") == "_posthog-challenge.example.com"
    await verify(half, domain["id"], StaticResolver({"example.com": [domain["verification_challenge"]]}))
    assert not is_verified(half, domain)
    await verify(half, domain["id"], saying(domain, f" {domain['verification_challenge']}\n"))
    assert is_verified(half, domain)


async def test_a_verified_domain_is_not_verified_again(half: Half, domain: dict[str, Any]) -> None:
    """The DNS isn't even asked."""
    await verify(half, domain["id"], holding(domain))
    with pytest.raises(ManagementError) as raised:
        await verify(half, domain["id"], Meanwhile([], lambda: pytest.fail("asked")))
    assert (raised.value.status, raised.value.code, raised.value.attr) == (400, "already_verified", "domain")


async def test_a_dns_that_does_not_answer_is_given_up(half: Half, domain: dict[str, Any]) -> None:
    """After a while, as if there were no record."""
    silent = Silent()
    assert await verify(half, domain["id"], silent) is None
    assert silent.cancelled
    assert not is_verified(half, domain)


def test_a_look_up_ends_before_its_limit() -> None:
    """So that it comes to its own end, and a caller doesn't wait long."""
    assert LIFETIME < LIMIT <= 5


async def test_a_cancelled_verification_ends(half: Half, domain: dict[str, Any]) -> None:
    """And so does its question to the DNS."""
    silent = Silent()
    task = asyncio.create_task(verify(half, domain["id"], silent))
    await silent.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert silent.cancelled


async def test_a_domain_that_goes_meanwhile_is_not_found(half: Half, domain: dict[str, Any]) -> None:
    """And the one that is added in its place has another challenge, and isn't verified by the old one's."""
    again: dict[str, Any] = {}

    def exchange() -> None:
        half.call(DELETE_DOMAIN, id=domain["id"])
        again.update(half.answer(CREATE_DOMAIN, {"domain": "example.com"}))

    with pytest.raises(ManagementError) as raised:
        await verify(half, domain["id"], Meanwhile([domain["verification_challenge"]], exchange))
    assert raised.value.status == 404
    assert not is_verified(half, again)


async def test_a_challenge_that_changes_meanwhile_counts_for_nothing(half: Half, domain: dict[str, Any]) -> None:
    """What was asked for is not what is wanted now."""
    change = "UPDATE domains SET verification_challenge = 'another'"
    await verify(half, domain["id"], Meanwhile([domain["verification_challenge"], "another"], lambda: half.database.execute(change)))
    assert not is_verified(half, domain)


async def test_two_verifications_at_once_are_one(half: Half, domain: dict[str, Any]) -> None:
    """The second finds it verified, leaves the time as it is, and is no error."""

    def first() -> None:
        half.database.execute("UPDATE domains SET verified_at = '2025-01-01T00:00:00.000000Z'")

    answer = await verify(half, domain["id"], Meanwhile([domain["verification_challenge"]], first), strict=True)
    assert answer == {**domain, "is_verified": True, "verified_at": "2025-01-01T00:00:00.000000Z"}


async def test_only_one_organization_gets_a_domain(half: Half, domain: dict[str, Any]) -> None:
    """Whoever is second is told that it is taken: before the DNS is asked, or when it has answered."""
    other = half.member("theirs@example.org", organization=half.organization())
    theirs = half.answer(CREATE_DOMAIN, {"domain": "example.com"}, by=other)
    taking = "UPDATE domains SET verified_at = '2025-01-01T00:00:00.000000Z' WHERE id = ?"
    both = [domain["verification_challenge"], theirs["verification_challenge"]]
    resolvers: list[Resolver] = [
        Meanwhile(both, lambda: half.database.execute(taking, (theirs["id"],))),
        Meanwhile(both, lambda: pytest.fail("asked")),
    ]
    for resolver in resolvers:
        with pytest.raises(ManagementError) as raised:
            await verify(half, domain["id"], resolver)
        assert (raised.value.status, raised.value.code, raised.value.attr) == (400, "unique", "domain")
    assert not is_verified(half, domain)


async def test_another_organization_can_not_verify_a_domain(half: Half, domain: dict[str, Any]) -> None:
    """It doesn't find it, and the DNS isn't asked."""
    other = half.member("theirs@example.org", organization=half.organization())
    with pytest.raises(ManagementError) as raised:
        await verify(half, domain["id"], Meanwhile([], lambda: pytest.fail("asked")), by=other)
    assert raised.value.status == 404
