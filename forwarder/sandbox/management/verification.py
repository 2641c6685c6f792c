"""Whether a domain is its organization's: its challenge stands in the DNS, in a TXT record of `_posthog-challenge.` and the domain.

The DNS is asked between two pieces of work, outside of any transaction, and can take seconds. So the second looks again: a domain that has
gone meanwhile, or became verified, or another organization's, isn't touched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from forwarder.contract.endpoints import VERIFY_DOMAIN, Endpoint
from forwarder.sandbox.management.call import AsyncHandler, Call, Resolver, Result, Run, invalid
from forwarder.sandbox.management.domains import found, host_name, refuse_taken, shown
from forwarder.sandbox.timing import format_time

LIMIT: Final = 5.0
"""Seconds that the DNS has."""


def challenge_name(domain: str) -> str:
    """The name whose TXT record holds the challenge."""
    return f"_posthog-challenge.{domain}"


def async_handlers(resolver: Resolver, limit: float = LIMIT) -> Mapping[Endpoint[Any, Any], AsyncHandler]:
    """What verifies domains by this resolver."""

    async def verify(run: Run) -> Result:
        """Ask the DNS, and mark the domain. Cancelled before the mark it changes nothing."""
        asked = await run(_asked)
        texts = await _texts(resolver, challenge_name(asked["domain"]), limit)
        challenge: str = asked["verification_challenge"]
        result: Result = await run(partial(_settled, challenge=challenge, there=challenge in texts))
        return result

    return {VERIFY_DOMAIN: verify}


async def _texts(resolver: Resolver, name: str, limit: float) -> Sequence[str]:
    try:
        async with asyncio.timeout(limit):
            return [text.strip() for text in await resolver.texts(name)]
    except TimeoutError:
        return []


def _asked(call: Call) -> dict[str, Any]:
    if "domain" in call.body:
        host_name(call.body["domain"])
    domain = found(call)
    if domain["verified_at"] is not None:
        raise invalid("domain", "The domain is verified already.", "already_verified")
    refuse_taken(call, domain["domain"])
    return shown(domain)


def _settled(call: Call, *, challenge: str, there: bool) -> Result:
    domain = found(call)
    if there and domain["verified_at"] is None and domain["verification_challenge"] == challenge:
        refuse_taken(call, domain["domain"])
        call.database.execute("UPDATE domains SET verified_at = ? WHERE id = ?", (format_time(call.now), domain["id"]))
    return shown(found(call)) if call.strict else None
