"""Domains: which are taken, who has one, and what can be changed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.endpoints import CREATE_DOMAIN, DELETE_DOMAIN, GET_DOMAIN, LIST_DOMAINS, UPDATE_DOMAIN
from forwarder.sandbox.management.call import Bounds, ManagementError
from tests.sandbox.management.half import Half, opened

TAKEN = (400, "unique", "domain")
LATER = "verification_needed"


def verify(half: Half, domain: dict[str, Any]) -> None:
    """Mark a domain as verified."""
    half.database.execute("UPDATE domains SET verified_at = '2026-01-01T00:00:00.000000Z' WHERE id = ?", (domain["id"],))


def test_a_new_domain_is_not_verified_and_has_a_challenge(half: Half) -> None:
    """It is in lower case, knows nothing of signing in, and what was sent about that is ignored."""
    sent = {"domain": "Mail.EXAMPLE.com", "jit_provisioning_enabled": True, "sso_enforcement": "saml", "saml_acs_url": "https://idp/acs"}
    domain = half.answer(CREATE_DOMAIN, sent)
    assert len(domain.pop("id")) == 36
    assert len(domain.pop("verification_challenge")) >= 40
    assert domain == {
        "domain": "mail.example.com",
        "is_verified": False,
        "verified_at": None,
        "jit_provisioning_enabled": False,
        "sso_enforcement": "",
        "has_saml": False,
        "saml_entity_id": "",
        "saml_acs_url": "https://idp/acs",
        "saml_x509_cert": "",
    }


def test_each_domain_has_a_challenge_of_its_own(half: Half) -> None:
    """Nobody can guess one from another."""
    challenges = {half.answer(CREATE_DOMAIN, {"domain": f"{number}.example.com"})["verification_challenge"] for number in range(20)}
    assert len(challenges) == 20


@pytest.mark.parametrize(
    "name",
    [
        *("localhost", "example..com", ".example.com", "example.com.", "-a.example.com", "a-.example.com", "a_b.example.com", "a b.com"),
        *("http://example.com", "example.com/x", "ann@example.com", "example.com\n", " example.com", "bücher.example", "127.0.0.1", "::1"),
        *("\u212aelvin.com", "ex\u0430mple.com", "*.example.com", "example.com:80", f"{'a' * 64}.com", ".", "a" * 253, "\u0665.com"),
    ],
)
def test_what_is_no_domain_is_refused(half: Half, name: str) -> None:
    """Only a host name with a dot in it is taken, as the DNS spells it."""
    assert half.error(CREATE_DOMAIN, {"domain": name}) == (400, "invalid", "domain")


@pytest.mark.parametrize("name", ["xn--bcher-kva.example", "a.b", "1.example.com", "a--b.co", ".".join(["a" * 63] * 3 + ["b" * 61])])
def test_unusual_domains_are_taken(half: Half, name: str) -> None:
    """International ones as the DNS has them, and those as long as can be."""
    assert half.answer(CREATE_DOMAIN, {"domain": name})["domain"] == name


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=253))
def test_any_text_is_taken_or_refused(name: str) -> None:
    """What is taken is ASCII in lower case with a dot in it, and reads the same when it is listed."""
    with opened() as half:
        domain = half.outcome(CREATE_DOMAIN, {"domain": name or "-"})
        if isinstance(domain, ManagementError):
            assert domain.code == "invalid"
        else:
            assert domain["domain"] == name.lower()
            assert name.isascii()
            assert half.items(LIST_DOMAINS) == [domain]


def test_a_domain_can_be_added_once(half: Half) -> None:
    """In any spelling; after it is deleted it can be added again, and gets another challenge."""
    first = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    assert half.error(CREATE_DOMAIN, {"domain": "EXAMPLE.com"}) == TAKEN
    assert half.call(DELETE_DOMAIN, id=first["id"]) is None
    assert half.error(GET_DOMAIN, id=first["id"]) == (404, "not_found", None)
    again = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    assert again["verification_challenge"] != first["verification_challenge"]


def test_two_organizations_can_ask_for_a_domain_until_one_has_it(half: Half) -> None:
    """Once it is verified, no other can add it."""
    other = half.member("other@example.org", organization=half.organization())
    third = half.member("third@example.org", organization=half.organization())
    first = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    half.answer(CREATE_DOMAIN, {"domain": "example.com"}, by=other)
    verify(half, first)
    assert half.error(CREATE_DOMAIN, {"domain": "Example.com"}, by=third) == TAKEN


def test_the_name_of_a_domain_stays(half: Half) -> None:
    """The same name in a change is fine, in any case; another is refused, an empty one too."""
    domain = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    assert half.answer(UPDATE_DOMAIN, {"domain": "EXAMPLE.com"}, id=domain["id"]) == domain
    for name in ("example.org", "", "example.com."):
        assert half.error(UPDATE_DOMAIN, {"domain": name}, id=domain["id"]) == (400, "immutable", "domain")


def test_signing_in_is_changed_once_the_domain_is_verified(half: Half) -> None:
    """Before that only a value that changes nothing is taken."""
    domain = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    assert half.error(UPDATE_DOMAIN, {"jit_provisioning_enabled": True}, id=domain["id"]) == (400, LATER, "jit_provisioning_enabled")
    assert half.error(UPDATE_DOMAIN, {"sso_enforcement": "saml"}, id=domain["id"]) == (400, LATER, "sso_enforcement")
    same = {"jit_provisioning_enabled": False, "sso_enforcement": ""}
    assert half.answer(UPDATE_DOMAIN, same, id=domain["id"]) == domain
    verify(half, domain)
    change = {"jit_provisioning_enabled": True, "sso_enforcement": "google-oauth2"}
    changed = half.answer(UPDATE_DOMAIN, change, id=domain["id"])
    assert changed == {**domain, **change, "is_verified": True, "verified_at": "2026-01-01T00:00:00.000000Z"}
    assert half.answer(UPDATE_DOMAIN, {}, id=domain["id"]) == changed
    assert half.answer(UPDATE_DOMAIN, same, id=domain["id"])["sso_enforcement"] == ""


def test_a_domain_has_saml_once_all_three_fields_are_filled(half: Half) -> None:
    """And no more as soon as one is empty."""
    domain = half.answer(CREATE_DOMAIN, {"domain": "example.com", "saml_entity_id": "us"})
    part = half.answer(UPDATE_DOMAIN, {"saml_acs_url": "https://idp/acs"}, id=domain["id"])
    assert not part["has_saml"]
    full = half.answer(UPDATE_DOMAIN, {"saml_x509_cert": "MII…"}, id=domain["id"])
    assert full["has_saml"]
    assert (full["saml_entity_id"], full["saml_acs_url"], full["saml_x509_cert"]) == ("us", "https://idp/acs", "MII…")
    assert not half.answer(UPDATE_DOMAIN, {"saml_entity_id": ""}, id=domain["id"])["has_saml"]


def test_domains_are_listed_in_order_and_by_pages(half: Half) -> None:
    """Those of another organization are not among them."""
    names = [f"{letter}.example.com" for letter in "cab"]
    for name in names:
        half.answer(CREATE_DOMAIN, {"domain": name})
    half.answer(CREATE_DOMAIN, {"domain": "theirs.example.org"}, by=half.member("o@example.org", organization=half.organization()))
    assert [domain["domain"] for domain in half.items(LIST_DOMAINS)] == names
    assert [domain["domain"] for domain in half.items(LIST_DOMAINS, page=Bounds(1, 1))] == names[1:2]
    assert half.items(LIST_DOMAINS, page=Bounds(10, 10**18)) == []


def test_another_organization_has_no_such_domain(half: Half) -> None:
    """Whatever it wants with it."""
    domain, other = half.answer(CREATE_DOMAIN, {"domain": "example.com"}), half.member("o@example.org", organization=half.organization())
    for endpoint in (GET_DOMAIN, UPDATE_DOMAIN, DELETE_DOMAIN):
        assert half.error(endpoint, {}, by=other, id=domain["id"]) == (404, "not_found", None)
    assert half.answer(GET_DOMAIN, id=domain["id"]) == domain
