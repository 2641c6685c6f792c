"""Every row of the table of errors happens, and in the documented order."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from forwarder.contract.endpoints import KeyScope
from tests.contract.calls import ROWS as CALLS
from tests.contract.calls import CalledSandbox, error_of, path_of, serving
from tests.contract.tables import plain, rows, spans
from tests.sandbox.client import SandboxReply
from tests.support import management as seed
from tests.support.cases import cases

ERRORS: Final = rows("Errors")
Provocation = Callable[[CalledSandbox], Awaitable[SandboxReply]]


def _calling(name: str, body: Any = ..., **options: Any) -> Provocation:
    return lambda service: service.call(name, body, **options)


def _asking(method: str, path: str) -> Provocation:
    return lambda service: service.ask(method, path)


def _sending(content: bytes, content_type: str | None = "application/json") -> Provocation:
    headers = {"Authorization": f"Bearer {seed.OWNER_KEY}"} | (
        {} if content_type is None else {"Content-Type": content_type}
    )
    return lambda service: service.client.ask(
        "POST", path_of(CALLS["projects create"]), content, headers
    )


PROVOKED: Final[dict[tuple[int, str], list[Provocation]]] = {
    (400, "parse_error"): [
        _sending(content)
        for content in (b"{", b"{]", b"\xff", b"NaN", b'{"name": Infinity}', b"[" * 100_000)
    ],
    (400, "invalid"): [
        _sending(b"[]"),
        _calling("projects create", {"name": 7}),
        _calling("projects create", {"name": "a\0b"}),
        _calling("projects create", {"modifiers": json.loads("[" * 70 + "]" * 70)}),
        _calling("projects create", {"modifiers": {"a": 10**30}}),
        _calling("batch-exports backfill", {"start_at": "2026-01-31T12:00:00"}),
        _calling("batch-exports backfill", {"start_at": "2099-01-31T12:00:00Z"}),
        _calling(
            "batch-exports backfill",
            {"start_at": "2026-01-31T12:00:00Z", "end_at": "2026-01-31T12:00:00Z"},
        ),
        _calling(
            "batch-exports update",
            {"start_at": "2026-01-31T12:00:00Z", "end_at": "2026-01-30T12:00:00Z"},
        ),
    ],
    (400, "required"): [
        _calling("domains create", {}),
        _calling("invites create", {}),
        _calling("batch-exports update", {"destination": {}}),
    ],
    (400, "null"): [_calling("projects create", {"name": None})],
    (400, "blank"): [_calling("projects create", {"name": name}) for name in ("", "  ")],
    (400, "invalid_choice"): [
        _calling("members update", {"level": 2}),
        _calling("projects create", {"timezone": "Nowhere"}),
    ],
    (400, "not_a_list"): [_calling("projects create", {"app_urls": "https://example.com"})],
    (400, "max_length"): [
        _calling("projects create", {"name": "x" * 201}),
        _calling(
            "invites bulk", [{"target_email": f"{number}@example.com"} for number in range(21)]
        ),
    ],
    (400, "min_value"): [_calling("projects create", {"week_start_day": -1})],
    (400, "max_value"): [_calling("projects create", {"week_start_day": 7})],
    (400, "immutable"): [_calling("domains update", {"domain": "another.example.com"})],
    (400, "unique"): [
        _calling("domains create", {"domain": name}) for name in ("example.com", "EXAMPLE.com")
    ],
    (400, "verification_needed"): [
        _calling("domains update", {name: value})
        for name, value in (("jit_provisioning_enabled", True), ("sso_enforcement", "saml"))
    ],
    (400, "already_verified"): [_calling("domains verify", id=seed.VERIFIED_DOMAIN)],
    (400, "already_member"): [_calling("invites create", {"target_email": "MIA@example.com"})],
    (400, "does_not_exist"): [
        _calling("projects create", {"primary_dashboard": seed.UNKNOWN_NUMBER}),
        _calling(
            "invites create",
            {
                "target_email": "new@example.com",
                "private_project_access": [{"id": seed.OTHER_PROJECT, "level": "member"}],
            },
        ),
    ],
    (400, "last_owner"): [_calling("members delete", user__uuid=seed.OWNER)],
    (401, "not_authenticated"): [_calling("domains list", key=None)],
    (401, "authentication_failed"): [_calling("domains list", key="phx_nobodys_key_at_all")],
    (403, "permission_denied"): [
        _calling("domains create", key=seed.MEMBER_KEY),
        _calling("domains list", key=seed.scoped_key(KeyScope.PROJECT_WRITE)),
        _calling("members update", {"level": 15}, key=seed.ADMIN_KEY),
        _calling("members update", {"level": 1}, key=seed.ADMIN_KEY, user__uuid=seed.OWNER),
        _calling("members update", {"level": 8}, user__uuid=seed.OWNER),
        _calling("members delete", key=seed.ADMIN_KEY, user__uuid=seed.OWNER),
        _calling("members delete", key=seed.MEMBER_KEY, user__uuid=seed.ADMIN),
        _calling(
            "invites create", {"target_email": "new@example.com", "level": 8}, key=seed.MEMBER_KEY
        ),
        _calling("invites delete", key=seed.MEMBER_KEY),
    ],
    (404, "not_found"): [
        *(
            _asking("GET", path)
            for path in (
                "/api",
                "/api/",
                "/api/organizations/",
                "/api/nothing/",
                "/api/organizations/x/domains//",
            )
        ),
        _calling("domains get", id=seed.UNKNOWN),
    ],
    (405, "method_not_allowed"): [_asking("PUT", path_of(CALLS["domains get"]))],
    (413, "request_too_large"): [_sending(b'{"name": "' + b"x" * 1_000_000 + b'"}')],
    (415, "unsupported_media_type"): [
        _sending(b"{}", kind) for kind in ("text/plain", "application/x-www-form-urlencoded", None)
    ],
}


@cases("row", ERRORS, ids=[f"{row['status']} {plain(row['code'])}" for row in ERRORS])
async def test_errors(row: dict[str, str], tmp_path: Path) -> None:
    """Each documented error happens as documented: status, type and code, in the documented body;
    and it changes nothing.
    """
    status = int(row["status"])
    code = plain(row["code"])
    async with serving(tmp_path) as service:
        before = [
            await service.items(f"{name} list")
            for name in ("domains", "invites", "members", "projects")
        ]
        for number, provocation in enumerate(PROVOKED[status, code]):
            assert error_of(await provocation(service))[:3] == (status, plain(row["type"]), code), (
                number
            )
        assert [
            await service.items(f"{name} list")
            for name in ("domains", "invites", "members", "projects")
        ] == before


def test_no_error_is_provoked_that_is_not_documented() -> None:
    """What happens here is in the table."""
    assert {(int(row["status"]), plain(row["code"])) for row in ERRORS} == set(PROVOKED)


async def test_the_first_of_several_errors(tmp_path: Path) -> None:
    """Key, scope, organization, level, body, id: a call in which everything is wrong is refused
    for these in turn.
    """
    scoped = seed.scoped_key(KeyScope.PROJECT_READ)
    unknown = {"organization_id": seed.UNKNOWN, "id": seed.UNKNOWN}
    async with serving(tmp_path) as service:
        wrong = {"domain": 7}
        steps = [
            (
                await service.call("domains update", wrong, unknown, key=None),
                401,
                "not_authenticated",
            ),
            (
                await service.call("domains update", wrong, unknown, key=scoped),
                403,
                "permission_denied",
            ),
            (
                await service.call("domains update", wrong, unknown, key=seed.MEMBER_KEY),
                404,
                "not_found",
            ),
            (
                await service.call("domains update", wrong, key=seed.MEMBER_KEY, id=seed.UNKNOWN),
                403,
                "permission_denied",
            ),
            (await service.call("domains update", wrong, id=seed.UNKNOWN), 400, "invalid"),
            (
                await service.call("domains update", {"domain": "b.example.com"}, id=seed.UNKNOWN),
                404,
                "not_found",
            ),
            (await service.call("domains update", {"domain": "b.example.com"}), 400, "immutable"),
        ]
        assert [(error_of(reply)[0], error_of(reply)[2]) for reply, _, _ in steps] == [
            (status, code) for _, status, code in steps
        ]


async def test_limits_of_bodies(tmp_path: Path) -> None:
    """A body of exactly the documented size is taken, with one byte more it is not."""
    limit = next(
        row["limit"] for row in rows("Limits") if row["what"] == "a request's body, management"
    )
    size = int(limit.removeprefix("at most ").removesuffix(" bytes").replace(",", ""))
    async with serving(tmp_path) as service:
        for length, status in ((size, 201), (size + 1, 413)):
            content = b'{"modifiers": "' + b"x" * (length - 17) + b'"}'
            assert len(content) == length
            assert (await _sending(content)(service)).status == status


def test_the_example_of_a_missing_scope() -> None:
    """The document quotes what is answered."""
    detail = spans(next(row["when"] for row in ERRORS if row["status"] == "403"))[0]
    assert detail == "API key missing required scope 'organization:write'"
