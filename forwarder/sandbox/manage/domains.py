"""The domains of an organization and their verification.

Two organizations can add the same domain, but only one can verify it; after that no other
organization can add it. Single sign-on settings (`jit_provisioning_enabled`, `sso_enforcement`)
can be set only on a verified domain.

A domain is verified by its challenge in a TXT record of `_posthog-challenge.` and the domain. The
DNS lookup runs between two units of work, outside of any transaction, and can take seconds. So the
second one checks again: a domain that was deleted meanwhile, or became verified, or another
organization's, is not changed.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4

from forwarder.contract.endpoints import (
    CREATE_DOMAIN,
    DELETE_DOMAIN,
    GET_DOMAIN,
    LIST_DOMAINS,
    UPDATE_DOMAIN,
    VERIFY_DOMAIN,
    Endpoint,
)
from forwarder.sandbox.manage.call import (
    AsyncHandler,
    Handler,
    Listing,
    ManagementCall,
    Result,
    Run,
    list_page,
    row,
)
from forwarder.sandbox.manage.dns import Resolver
from forwarder.sandbox.protocol.http import invalid, not_found
from forwarder.sandbox.protocol.times import format_time

DNS_TIMEOUT: Final = 5.0
"""Seconds for a lookup."""
_LONGEST: Final = 253
_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST: Final = re.compile(rf"({_LABEL}\.)+(?![0-9]+$){_LABEL}", re.ASCII | re.IGNORECASE).fullmatch
_SAML: Final = ("saml_entity_id", "saml_acs_url", "saml_x509_cert")
_ONCE_VERIFIED: Final = ("jit_provisioning_enabled", "sso_enforcement")


def find_domain(call: ManagementCall) -> sqlite3.Row:
    """The domain that is called."""
    domain = row(
        call.database,
        "SELECT * FROM domains WHERE id = ? AND organization = ?",
        call.ids["id"],
        call.organization,
    )
    if domain is None:
        raise not_found()
    return domain


def domain_resource(domain: sqlite3.Row) -> dict[str, Any]:
    """A domain as it is answered."""
    return {
        "id": domain["id"],
        "domain": domain["domain"],
        "is_verified": domain["verified_at"] is not None,
        "verified_at": domain["verified_at"],
        "verification_challenge": domain["verification_challenge"],
        "jit_provisioning_enabled": bool(domain["jit_provisioning_enabled"]),
        "sso_enforcement": domain["sso_enforcement"],
        "has_saml": all(domain[field] for field in _SAML),
        **{field: domain[field] for field in _SAML},
    }


def reject_verified_elsewhere(call: ManagementCall, domain: str) -> None:
    """Refuse a domain that another organization has verified."""
    statement = (
        "SELECT 1 FROM domains WHERE domain = ? AND organization <> ? AND verified_at IS NOT NULL"
    )
    if row(call.database, statement, domain, call.organization) is not None:
        raise invalid("domain", "Another organization has verified this domain.", "unique")


def _list(call: ManagementCall) -> Listing:
    return list_page(
        call.database,
        call.page,
        domain_resource,
        "SELECT * FROM domains WHERE organization = ? ORDER BY number",
        call.organization,
    )


def _create(call: ManagementCall) -> dict[str, Any]:
    domain = host_name(call.body["domain"])
    if (
        row(
            call.database,
            "SELECT 1 FROM domains WHERE domain = ? AND organization = ?",
            domain,
            call.organization,
        )
        is not None
    ):
        raise invalid("domain", "The organization has this domain already.", "unique")
    reject_verified_elsewhere(call, domain)
    identity = str(uuid4())
    challenge = secrets.token_urlsafe(32)
    call.database.execute(
        """
        INSERT INTO domains (
            id, organization, domain, verification_challenge, saml_entity_id, saml_acs_url,
            saml_x509_cert
        ) VALUES (?, ?, ?, ?, ?, ?, ?)
        """,
        (
            identity,
            call.organization,
            domain,
            challenge,
            *(call.body.get(field, "") for field in _SAML),
        ),
    )
    return _by_id(call, identity)


def _get(call: ManagementCall) -> dict[str, Any]:
    return domain_resource(find_domain(call))


def _update(call: ManagementCall) -> dict[str, Any]:
    domain = find_domain(call)
    if call.body.get("domain", domain["domain"]).lower() != domain["domain"]:
        raise invalid(
            "domain", "A domain can't become another one: delete it and add the other.", "immutable"
        )
    new = {**domain_resource(domain), **call.body}
    for field in _ONCE_VERIFIED:
        if domain["verified_at"] is None and new[field] != domain[field]:
            raise invalid(
                field, "This can be changed once the domain is verified.", "verification_needed"
            )
    fields = (*_ONCE_VERIFIED, *_SAML)
    call.database.execute(
        """
        UPDATE domains SET
            jit_provisioning_enabled = ?, sso_enforcement = ?, saml_entity_id = ?,
            saml_acs_url = ?, saml_x509_cert = ?
        WHERE id = ?
        """,
        (*(new[field] for field in fields), domain["id"]),
    )
    return _by_id(call, domain["id"])


def _delete(call: ManagementCall) -> None:
    call.database.execute("DELETE FROM domains WHERE id = ?", (find_domain(call)["id"],))


def host_name(text: str) -> str:
    """The domain in lower case. An international one is to be spelled as the DNS has
    it, `xn--…`.
    """
    if len(text) > _LONGEST or not _HOST(text):
        raise invalid(
            "domain",
            (
                "This isn't a domain, such as example.com: letters, digits, hyphens, and at least "
                "one dot."
            ),
            "invalid",
        )
    return text.lower()


def _by_id(call: ManagementCall, identity: str) -> dict[str, Any]:
    domain = row(call.database, "SELECT * FROM domains WHERE id = ?", identity)
    assert domain is not None  # noqa: S101 - it was written in this transaction
    return domain_resource(domain)


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {
    LIST_DOMAINS: _list,
    CREATE_DOMAIN: _create,
    GET_DOMAIN: _get,
    UPDATE_DOMAIN: _update,
    DELETE_DOMAIN: _delete,
}


def challenge_name(domain: str) -> str:
    """The name whose TXT record holds the challenge."""
    return f"_posthog-challenge.{domain}"


def async_handlers(
    resolver: Resolver, limit: float = DNS_TIMEOUT
) -> Mapping[Endpoint[Any, Any], AsyncHandler]:
    """What verifies domains by this resolver."""

    async def verify(run: Run) -> Result:
        """Ask the DNS, and mark the domain. Cancelled before the mark it changes nothing."""
        asked = await run(_check_domain)
        texts = await _look_up(resolver, challenge_name(asked["domain"]), limit)
        challenge: str = asked["verification_challenge"]
        result: Result = await run(
            partial(_mark_verified, challenge=challenge, there=challenge in texts)
        )
        return result

    return {VERIFY_DOMAIN: verify}


async def _look_up(resolver: Resolver, name: str, limit: float) -> Sequence[str]:
    try:
        async with asyncio.timeout(limit):
            return [text.strip() for text in await resolver.texts(name)]
    except TimeoutError:
        return []


def _check_domain(call: ManagementCall) -> dict[str, Any]:
    if "domain" in call.body:
        host_name(call.body["domain"])
    domain = find_domain(call)
    if domain["verified_at"] is not None:
        raise invalid("domain", "The domain is verified already.", "already_verified")
    reject_verified_elsewhere(call, domain["domain"])
    return domain_resource(domain)


def _mark_verified(call: ManagementCall, *, challenge: str, there: bool) -> Result:
    domain = find_domain(call)
    if there and domain["verified_at"] is None and domain["verification_challenge"] == challenge:
        reject_verified_elsewhere(call, domain["domain"])
        call.database.execute(
            "UPDATE domains SET verified_at = ? WHERE id = ?", (format_time(call.now), domain["id"])
        )
    return domain_resource(find_domain(call)) if call.strict else None
