"""The domains of an organization. Whether one is its organization's is for `verification` to find out.

Two organizations may ask for the same domain, but only one gets it verified; then nobody else can add it. What a domain does for signing in
(`jit_provisioning_enabled`, `sso_enforcement`) can be set only once it is verified.
"""

from __future__ import annotations

import re
import secrets
import sqlite3
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

from forwarder.contract.endpoints import CREATE_DOMAIN, DELETE_DOMAIN, GET_DOMAIN, LIST_DOMAINS, UPDATE_DOMAIN, Endpoint
from forwarder.sandbox.management.call import Call, Handler, Listing, invalid, not_found
from forwarder.sandbox.management.rows import listing, row

_LONGEST: Final = 253
_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST: Final = re.compile(rf"({_LABEL}\.)+(?![0-9]+$){_LABEL}", re.ASCII | re.IGNORECASE).fullmatch
_SAML: Final = ("saml_entity_id", "saml_acs_url", "saml_x509_cert")
_ONCE_VERIFIED: Final = ("jit_provisioning_enabled", "sso_enforcement")


def found(call: Call) -> sqlite3.Row:
    """The domain that is called."""
    domain = row(call.database, "SELECT * FROM domains WHERE id = ? AND organization = ?", call.ids["id"], call.organization)
    if domain is None:
        raise not_found()
    return domain


def shown(domain: sqlite3.Row) -> dict[str, Any]:
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


def refuse_taken(call: Call, domain: str) -> None:
    """Refuse a domain that another organization has verified."""
    statement = "SELECT 1 FROM domains WHERE domain = ? AND organization <> ? AND verified_at IS NOT NULL"
    if row(call.database, statement, domain, call.organization) is not None:
        raise invalid("domain", "Another organization has verified this domain.", "unique")


def _list(call: Call) -> Listing:
    return listing(call.database, call.page, shown, "SELECT * FROM domains WHERE organization = ? ORDER BY number", call.organization)


def _create(call: Call) -> dict[str, Any]:
    domain = host_name(call.body["domain"])
    if row(call.database, "SELECT 1 FROM domains WHERE domain = ? AND organization = ?", domain, call.organization) is not None:
        raise invalid("domain", "The organization has this domain already.", "unique")
    refuse_taken(call, domain)
    identity, challenge = str(uuid4()), secrets.token_urlsafe(32)
    call.database.execute(
        "INSERT INTO domains (id, organization, domain, verification_challenge, saml_entity_id, saml_acs_url, saml_x509_cert)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (identity, call.organization, domain, challenge, *(call.body.get(field, "") for field in _SAML)),
    )
    return _by_id(call, identity)


def _get(call: Call) -> dict[str, Any]:
    return shown(found(call))


def _update(call: Call) -> dict[str, Any]:
    domain = found(call)
    if call.body.get("domain", domain["domain"]).lower() != domain["domain"]:
        raise invalid("domain", "A domain can't become another one: delete it and add the other.", "immutable")
    new = {**shown(domain), **call.body}
    for field in _ONCE_VERIFIED:
        if domain["verified_at"] is None and new[field] != domain[field]:
            raise invalid(field, "This can be changed once the domain is verified.", "verification_needed")
    fields = (*_ONCE_VERIFIED, *_SAML)
    call.database.execute(
        "UPDATE domains SET jit_provisioning_enabled = ?, sso_enforcement = ?, saml_entity_id = ?, saml_acs_url = ?, saml_x509_cert = ?"
        " WHERE id = ?",
        (*(new[field] for field in fields), domain["id"]),
    )
    return _by_id(call, domain["id"])


def _delete(call: Call) -> None:
    call.database.execute("DELETE FROM domains WHERE id = ?", (found(call)["id"],))


def host_name(text: str) -> str:
    """The domain in lower case. An international one is to be spelled as the DNS has it, `xn--…`."""
    if len(text) > _LONGEST or not _HOST(text):
        raise invalid("domain", "This isn't a domain, such as example.com: letters, digits, hyphens, and at least one dot.", "invalid")
    return text.lower()


def _by_id(call: Call, identity: str) -> dict[str, Any]:
    domain = row(call.database, "SELECT * FROM domains WHERE id = ?", identity)
    assert domain is not None  # noqa: S101 - it was written in this transaction
    return shown(domain)


HANDLERS: Final[Mapping[Endpoint[Any, Any], Handler]] = {
    LIST_DOMAINS: _list,
    CREATE_DOMAIN: _create,
    GET_DOMAIN: _get,
    UPDATE_DOMAIN: _update,
    DELETE_DOMAIN: _delete,
}
