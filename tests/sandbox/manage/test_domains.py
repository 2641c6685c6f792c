"""Domains and their verification."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.endpoints import (
    CREATE_DOMAIN,
    DELETE_DOMAIN,
    GET_DOMAIN,
    LIST_DOMAINS,
    UPDATE_DOMAIN,
    VERIFY_DOMAIN,
)
from forwarder.sandbox.manage.call import Handler, PageBounds, Result
from forwarder.sandbox.manage.dns import LIFETIME, Resolver, StaticResolver
from forwarder.sandbox.manage.domains import DNS_TIMEOUT, async_handlers, challenge_name
from forwarder.sandbox.protocol.http import ManagementError
from tests.sandbox.half import ManagementTables, MemberOfHome, opened

TAKEN = (400, "unique", "domain")
LATER = "verification_needed"


def verify(half: ManagementTables, domain: dict[str, Any]) -> None:
    """Mark a domain as verified."""
    half.database.execute(
        "UPDATE domains SET verified_at = '2026-01-01T00:00:00.000000Z' WHERE id = ?",
        (domain["id"],),
    )


def test_a_new_domain_is_not_verified_and_has_a_challenge(half: ManagementTables) -> None:
    """It is in lower case, knows nothing of signing in, and what was sent about that is ignored."""
    sent = {
        "domain": "Mail.EXAMPLE.com",
        "jit_provisioning_enabled": True,
        "sso_enforcement": "saml",
        "saml_acs_url": "https://idp/acs",
    }
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


def test_each_domain_has_a_challenge_of_its_own(half: ManagementTables) -> None:
    """No one can guess one from another."""
    challenges = {
        half.answer(CREATE_DOMAIN, {"domain": f"{number}.example.com"})["verification_challenge"]
        for number in range(20)
    }
    assert len(challenges) == 20


@pytest.mark.parametrize(
    "name",
    [
        *(
            "localhost",
            "example..com",
            ".example.com",
            "example.com.",
            "-a.example.com",
            "a-.example.com",
            "a_b.example.com",
            "a b.com",
        ),
        *(
            "http://example.com",
            "example.com/x",
            "ann@example.com",
            "example.com\n",
            " example.com",
            "bücher.example",
            "127.0.0.1",
            "::1",
        ),
        *(
            "\u212aelvin.com",
            "ex\u0430mple.com",
            "*.example.com",
            "example.com:80",
            f"{'a' * 64}.com",
            ".",
            "a" * 253,
            "\u0665.com",
        ),
    ],
)
def test_what_is_no_domain_is_refused(half: ManagementTables, name: str) -> None:
    """Only a host name with a dot in it is taken, as the DNS spells it."""
    assert half.error(CREATE_DOMAIN, {"domain": name}) == (400, "invalid", "domain")


@pytest.mark.parametrize(
    "name",
    [
        "xn--bcher-kva.example",
        "a.b",
        "1.example.com",
        "a--b.co",
        ".".join(["a" * 63] * 3 + ["b" * 61]),
    ],
)
def test_unusual_domains_are_accepted(half: ManagementTables, name: str) -> None:
    """International ones as the DNS has them, and those as long as can be."""
    assert half.answer(CREATE_DOMAIN, {"domain": name})["domain"] == name


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=253))
def test_any_text_is_accepted_or_rejected(name: str) -> None:
    """What is taken is ASCII in lower case with a dot in it, and reads the same when
    it is listed.
    """
    with opened() as half:
        domain = half.outcome(CREATE_DOMAIN, {"domain": name or "-"})
        if isinstance(domain, ManagementError):
            assert domain.code == "invalid"
        else:
            assert domain["domain"] == name.lower()
            assert name.isascii()
            assert half.items(LIST_DOMAINS) == [domain]


def test_a_domain_can_be_added_once(half: ManagementTables) -> None:
    """In any spelling; after it is deleted it can be added again, and gets another challenge."""
    first = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    assert half.error(CREATE_DOMAIN, {"domain": "EXAMPLE.com"}) == TAKEN
    assert half.call(DELETE_DOMAIN, id=first["id"]) is None
    assert half.error(GET_DOMAIN, id=first["id"]) == (404, "not_found", None)
    again = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    assert again["verification_challenge"] != first["verification_challenge"]


def test_two_organizations_can_ask_for_a_domain_until_one_has_it(half: ManagementTables) -> None:
    """Once it is verified, no other can add it."""
    other = half.member("other@example.org", organization=half.organization())
    third = half.member("third@example.org", organization=half.organization())
    first = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    half.answer(CREATE_DOMAIN, {"domain": "example.com"}, by=other)
    verify(half, first)
    assert half.error(CREATE_DOMAIN, {"domain": "Example.com"}, by=third) == TAKEN


def test_the_name_of_a_domain_stays(half: ManagementTables) -> None:
    """The same name in a change is fine, in any case; another is refused, an empty one too."""
    domain = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    assert half.answer(UPDATE_DOMAIN, {"domain": "EXAMPLE.com"}, id=domain["id"]) == domain
    for name in ("example.org", "", "example.com."):
        assert half.error(UPDATE_DOMAIN, {"domain": name}, id=domain["id"]) == (
            400,
            "immutable",
            "domain",
        )


def test_signing_in_is_changed_once_the_domain_is_verified(half: ManagementTables) -> None:
    """Before that only a value that changes nothing is taken."""
    domain = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    assert half.error(UPDATE_DOMAIN, {"jit_provisioning_enabled": True}, id=domain["id"]) == (
        400,
        LATER,
        "jit_provisioning_enabled",
    )
    assert half.error(UPDATE_DOMAIN, {"sso_enforcement": "saml"}, id=domain["id"]) == (
        400,
        LATER,
        "sso_enforcement",
    )
    same = {"jit_provisioning_enabled": False, "sso_enforcement": ""}
    assert half.answer(UPDATE_DOMAIN, same, id=domain["id"]) == domain
    verify(half, domain)
    change = {"jit_provisioning_enabled": True, "sso_enforcement": "google-oauth2"}
    changed = half.answer(UPDATE_DOMAIN, change, id=domain["id"])
    assert changed == {
        **domain,
        **change,
        "is_verified": True,
        "verified_at": "2026-01-01T00:00:00.000000Z",
    }
    assert half.answer(UPDATE_DOMAIN, {}, id=domain["id"]) == changed
    assert half.answer(UPDATE_DOMAIN, same, id=domain["id"])["sso_enforcement"] == ""


def test_a_domain_has_saml_once_all_three_fields_are_filled(half: ManagementTables) -> None:
    """And no more as soon as one is empty."""
    domain = half.answer(CREATE_DOMAIN, {"domain": "example.com", "saml_entity_id": "us"})
    part = half.answer(UPDATE_DOMAIN, {"saml_acs_url": "https://idp/acs"}, id=domain["id"])
    assert not part["has_saml"]
    full = half.answer(UPDATE_DOMAIN, {"saml_x509_cert": "MII…"}, id=domain["id"])
    assert full["has_saml"]
    assert (full["saml_entity_id"], full["saml_acs_url"], full["saml_x509_cert"]) == (
        "us",
        "https://idp/acs",
        "MII…",
    )
    assert not half.answer(UPDATE_DOMAIN, {"saml_entity_id": ""}, id=domain["id"])["has_saml"]


def test_domains_are_listed_in_order_and_by_pages(half: ManagementTables) -> None:
    """Those of another organization are not among them."""
    names = [f"{letter}.example.com" for letter in "cab"]
    for name in names:
        half.answer(CREATE_DOMAIN, {"domain": name})
    half.answer(
        CREATE_DOMAIN,
        {"domain": "theirs.example.org"},
        by=half.member("o@example.org", organization=half.organization()),
    )
    assert [domain["domain"] for domain in half.items(LIST_DOMAINS)] == names
    assert [
        domain["domain"] for domain in half.items(LIST_DOMAINS, page=PageBounds(1, 1))
    ] == names[1:2]
    assert half.items(LIST_DOMAINS, page=PageBounds(10, 10**18)) == []


def test_another_organization_has_no_such_domain(half: ManagementTables) -> None:
    """Whatever it wants with it."""
    domain = half.answer(CREATE_DOMAIN, {"domain": "example.com"})
    other = half.member("o@example.org", organization=half.organization())
    for endpoint in (GET_DOMAIN, UPDATE_DOMAIN, DELETE_DOMAIN):
        assert half.error(endpoint, {}, by=other, id=domain["id"]) == (404, "not_found", None)
    assert half.answer(GET_DOMAIN, id=domain["id"]) == domain


NOW = "2026-01-01T00:00:00.000000Z"


class ChangingResolver:
    """A resolver that answers with `texts`, after something else has happened."""

    def __init__(self, texts: Sequence[str], happens: Callable[[], object]) -> None:
        self._texts = texts
        self._happens = happens

    async def texts(self, name: str) -> Sequence[str]:
        """The texts. Nothing to cancel."""
        self._happens()
        return self._texts


class Silent:
    """A resolver that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.cancelled = False

    async def texts(self, name: str) -> Sequence[str]:
        """Nothing, ever. Cancellation is noted."""
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True
        return []


@pytest.fixture
def domain(half: ManagementTables) -> dict[str, Any]:
    """A domain that isn't verified."""
    return half.answer(CREATE_DOMAIN, {"domain": "example.com"})


async def verify_by(
    half: ManagementTables,
    identity: str,
    resolver: Resolver,
    *,
    by: MemberOfHome | None = None,
    strict: bool = False,
) -> Result:
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


def is_verified(half: ManagementTables, domain: dict[str, Any]) -> bool:
    """Whether a domain is verified now."""
    return half.answer(GET_DOMAIN, id=domain["id"])["is_verified"] is True


async def test_a_domain_with_its_challenge_in_the_dns_becomes_verified(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """It is said when; there is no body."""
    assert await verify_by(half, domain["id"], holding(domain)) is None
    assert half.answer(GET_DOMAIN, id=domain["id"]) == {
        **domain,
        "is_verified": True,
        "verified_at": NOW,
    }


async def test_the_real_service_answers_with_the_domain(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """Verified or not."""
    assert await verify_by(half, domain["id"], saying(domain), strict=True) == domain
    assert await verify_by(half, domain["id"], holding(domain), strict=True) == {
        **domain,
        "is_verified": True,
        "verified_at": NOW,
    }


@pytest.mark.parametrize("texts", [(), ("",), ("something else",), ("{0}x",), ("x{0}",)])
async def test_a_challenge_that_is_not_there_changes_nothing(
    half: ManagementTables, domain: dict[str, Any], texts: Sequence[str]
) -> None:
    """No record, another one, or one that only contains it: no error either."""
    resolver = saying(domain, *(text.format(domain["verification_challenge"]) for text in texts))
    assert await verify_by(half, domain["id"], resolver) is None
    assert half.answer(GET_DOMAIN, id=domain["id"]) == domain


async def test_the_challenge_counts_at_its_name_only(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """Not at the domain itself; blanks around it are no matter."""
    assert challenge_name("example.com") == "_posthog-challenge.example.com"
    await verify_by(
        half, domain["id"], StaticResolver({"example.com": [domain["verification_challenge"]]})
    )
    assert not is_verified(half, domain)
    await verify_by(half, domain["id"], saying(domain, f" {domain['verification_challenge']}\n"))
    assert is_verified(half, domain)


async def test_a_verified_domain_is_not_verified_again(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """The DNS isn't even asked."""
    await verify_by(half, domain["id"], holding(domain))
    with pytest.raises(ManagementError) as raised:
        await verify_by(half, domain["id"], ChangingResolver([], lambda: pytest.fail("asked")))
    assert (raised.value.status, raised.value.code, raised.value.attr) == (
        400,
        "already_verified",
        "domain",
    )


async def test_a_dns_that_does_not_answer_is_given_up(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """After a while, as if there were no record."""
    silent = Silent()
    assert await verify_by(half, domain["id"], silent) is None
    assert silent.cancelled
    assert not is_verified(half, domain)


def test_a_look_up_ends_before_its_limit() -> None:
    """So that it comes to its own end, and a caller doesn't wait long."""
    assert LIFETIME < DNS_TIMEOUT <= 5


async def test_a_cancelled_verification_ends(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """And so does its question to the DNS."""
    silent = Silent()
    task = asyncio.create_task(verify_by(half, domain["id"], silent))
    await silent.asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert silent.cancelled


async def test_a_domain_that_goes_meanwhile_is_not_found(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """And the one that is added in its place has another challenge, and isn't
    verified by the old one's.
    """
    again: dict[str, Any] = {}

    def exchange() -> None:
        half.call(DELETE_DOMAIN, id=domain["id"])
        again.update(half.answer(CREATE_DOMAIN, {"domain": "example.com"}))

    with pytest.raises(ManagementError) as raised:
        await verify_by(
            half, domain["id"], ChangingResolver([domain["verification_challenge"]], exchange)
        )
    assert raised.value.status == 404
    assert not is_verified(half, again)


async def test_a_challenge_that_changes_meanwhile_counts_for_nothing(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """What was asked for is not what is required now."""
    change = "UPDATE domains SET verification_challenge = 'another'"
    await verify_by(
        half,
        domain["id"],
        ChangingResolver(
            [domain["verification_challenge"], "another"], lambda: half.database.execute(change)
        ),
    )
    assert not is_verified(half, domain)


async def test_two_verifications_at_once_are_one(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """The second finds it verified, leaves the time as it is, and is no error."""

    def first() -> None:
        half.database.execute("UPDATE domains SET verified_at = '2025-01-01T00:00:00.000000Z'")

    answer = await verify_by(
        half, domain["id"], ChangingResolver([domain["verification_challenge"]], first), strict=True
    )
    assert answer == {**domain, "is_verified": True, "verified_at": "2025-01-01T00:00:00.000000Z"}


async def test_only_one_organization_gets_a_domain(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """The second one learns that it is in use: before the DNS is asked, or when it
    has answered.
    """
    other = half.member("theirs@example.org", organization=half.organization())
    theirs = half.answer(CREATE_DOMAIN, {"domain": "example.com"}, by=other)
    taking = "UPDATE domains SET verified_at = '2025-01-01T00:00:00.000000Z' WHERE id = ?"
    both = [domain["verification_challenge"], theirs["verification_challenge"]]
    resolvers: list[Resolver] = [
        ChangingResolver(both, lambda: half.database.execute(taking, (theirs["id"],))),
        ChangingResolver(both, lambda: pytest.fail("asked")),
    ]
    for resolver in resolvers:
        with pytest.raises(ManagementError) as raised:
            await verify_by(half, domain["id"], resolver)
        assert (raised.value.status, raised.value.code, raised.value.attr) == (
            400,
            "unique",
            "domain",
        )
    assert not is_verified(half, domain)


async def test_another_organization_can_not_verify_a_domain(
    half: ManagementTables, domain: dict[str, Any]
) -> None:
    """It doesn't find it, and the DNS isn't asked."""
    other = half.member("theirs@example.org", organization=half.organization())
    with pytest.raises(ManagementError) as raised:
        await verify_by(
            half, domain["id"], ChangingResolver([], lambda: pytest.fail("asked")), by=other
        )
    assert raised.value.status == 404
