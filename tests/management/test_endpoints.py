"""Every row of the table of management endpoints through both faces of the client, against the sandbox: what works, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from forwarder.contract.endpoints import IdKind, Scope
from forwarder.contract.kinds import MEMBER
from forwarder.management import Client, SyncClient
from tests.contract.calls import ROWS, ids_of
from tests.contract.values import read_only, wrong
from tests.management.faces import BY_NAME, FACES, LISTS, WITH_BODY, Face, facing
from tests.support import management as seed

EVERY = pytest.mark.parametrize("name", BY_NAME)
LEAST: dict[str, dict[str, str]] = {
    "domains create": {"domain": "new.example.com"},
    "invites create": {"target_email": "new@example.com"},
    "invites bulk": {"target_email": "new@example.com"},
}
STRICT = {"paused": {"pause": True, "unpause": False}, "backfill_id": {"backfill", "retry"}}


@pytest.fixture(params=FACES)
async def face(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Face]:
    """A client of either kind, and a sandbox with the seed."""
    async with facing(request.param, tmp_path) as under_test:
        yield under_test


@pytest.fixture
async def faces(tmp_path: Path) -> AsyncIterator[list[Face]]:
    """Clients of both kinds, and one sandbox, for what changes nothing."""
    async with facing("async", tmp_path) as one:
        yield [one, Face(one.service, "blocking")]


def check(name: str, answer: Any) -> None:
    """The answer is of the type that the table says."""
    endpoint = BY_NAME[name]
    for each in answer if endpoint.paginated else [answer]:
        TypeAdapter(endpoint.response).validate_python(each, strict=True)


@EVERY
async def test_success(face: Face, name: str) -> None:
    """Each method returns what the table says, typed; and nothing where there is nothing. What is deleted is gone."""
    answer = await face.do(name)
    check(name, answer)
    if BY_NAME[name].paginated:
        assert answer == await face.service.items(name)
    if BY_NAME[name].destructive:
        assert (await face.refused(name)).status == 404


@pytest.mark.slow
@EVERY
async def test_a_key_that_nobody_has(faces: list[Face], name: str) -> None:
    """401, with a hint at the key, which isn't in the error; a project's key never gets so far."""
    for face in faces:
        error = await face.refused(name, key="phx_nobody_has_this_key_0000")
        assert (error.status, error.type, error.code) == (401, "authentication_error", "authentication_failed")
        assert "phx_nobody" not in f"{error}{error.hint}{vars(error)}"
        assert "personal API key" in error.hint


@pytest.mark.slow
@EVERY
async def test_a_missing_scope(faces: list[Face], name: str) -> None:
    """403, and the hint names the scope; the key that has it alone is enough, and for reading that for writing, too."""
    scope = BY_NAME[name].scope
    needed, _, kind = scope.partition(":")
    lacking = [each for each in Scope if each not in (scope, f"{needed}:write")]
    for face in faces:
        for each in lacking:
            error = await face.refused(name, key=seed.scoped_key(each))
            assert (error.status, error.type, error.code) == (403, "authentication_error", "permission_denied")
            assert error.detail == f"API key missing required scope '{scope}'"
            assert error.hint == f"Give the key the scope {scope}."
    enough = [each for each in Scope if each not in lacking]
    assert enough == ([scope] if kind == "write" or needed == "dashboard" else [scope, Scope(f"{needed}:write")])
    check(name, await faces[0].do(name, key=seed.scoped_key(enough[-1])))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, endpoint in BY_NAME.items() if endpoint.level > MEMBER])
async def test_a_level_that_is_too_low(faces: list[Face], name: str) -> None:
    """403 for a plain member where it takes an admin, and the hint says so."""
    for face in faces:
        error = await face.refused(name, key=seed.MEMBER_KEY)
        assert (error.status, error.type, error.code) == (403, "authentication_error", "permission_denied")
        assert "membership of at least the level 'admin'" in error.hint


@pytest.mark.slow
@EVERY
async def test_another_organization(faces: list[Face], name: str) -> None:
    """404, whether the stranger comes to us or we to them, or their things are looked for here; and nothing changes."""
    theirs = ids_of(ROWS[name], other=True)
    inner = [parameter.name for parameter in BY_NAME[name].parameters][1:]
    before = await faces[0].everything()
    for face in faces:
        errors = [await face.refused(name, other=True), await face.refused(name, key=seed.STRANGER_KEY)]
        errors += [await face.refused(name, ids={parameter: theirs[parameter]}) for parameter in inner]
        assert {(error.status, error.type, error.code) for error in errors} == {(404, "invalid_request", "not_found")}
        assert all("another organization" in error.hint for error in errors)
    assert await faces[0].everything() == before


@pytest.mark.slow
@EVERY
async def test_ids_of_nothing(faces: list[Face], name: str) -> None:
    """404 for an id that nothing has, and for one that none could have; the hint shows the ids."""
    for face, parameter in itertools.product(faces, BY_NAME[name].parameters):
        unknown: object = seed.UNKNOWN if parameter.kind is IdKind.UUID else seed.UNKNOWN_NUMBER
        for value in (unknown, "no-id", "a?b=c&d#e%2F..", "9" * 200):
            error = await face.refused(name, ids={parameter.name: value})
            assert (error.status, error.type, error.code) == (404, "invalid_request", "not_found"), (parameter, value)
            assert f"{parameter.name} {str(value)[:60]}" in error.hint


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_BODY)
async def test_bad_fields(faces: list[Face], name: str) -> None:
    """400, and the error names the field; nothing changes."""
    before = await faces[0].everything()
    for number, field in enumerate(ROWS[name].accepted.values()):
        for value in wrong(field)[:1]:
            error = await faces[number % 2].refused(name, {**LEAST.get(name, {}), field.name: value})
            assert (error.status, error.type) == (400, "validation_error"), (field, value)
            assert (error.field or "").removeprefix("0__").partition("__")[0] == field.name
            assert field.name in error.hint
    assert await faces[0].everything() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_BODY)
async def test_read_only_fields(face: Face, name: str) -> None:
    """What isn't accepted is ignored, and what is unknown, too."""
    endpoint, row = BY_NAME[name], ROWS[name]
    assert row.body is not None
    strange = {field: value for field, value in read_only(row.body[0], row.body[1]).items() if field not in row.accepted}
    answer = await face.do(name, {**LEAST.get(name, {}), **strange, "nobody_knows": [1]})
    check(name, answer)
    if endpoint.answers_body:
        assert {field for field, value in strange.items() if answer[field] == value} == set()
        assert "nobody_knows" not in answer


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
async def test_pages(face: Face, name: str) -> None:
    """First, middle and last page, by limit and offset; all of them in pages of any size; and how many there are."""
    create, field = f"{BY_NAME[name].resource} create", {"domains": "domain", "invites": "target_email", "projects": "name"}
    for number in range(3) if BY_NAME[name].resource in field else ():
        value = {"domains": f"{number}.example.net", "invites": f"{number}@example.net", "projects": f"Project {number}"}
        await face.do(create, {field[BY_NAME[name].resource]: value[BY_NAME[name].resource]})
    items = await face.service.items(name)
    owner = BY_NAME[name].parameters[0].name
    ids = {owner: seed.ORGANIZATION if owner == "organization_id" else seed.PROJECT}
    assert len(items) >= 3

    def listed(client: Client | SyncClient, size: int | None = None) -> Any:
        return client.pages(BY_NAME[name], ids, page_size=size)

    pages = [await face.using(partial(_page, listed, number)) for number in (0, 1, len(items) - 1)]
    assert [page["results"] for page in pages] == [items[:1], items[1:2], items[-1:]]
    assert [page["previous"] is None for page in pages] == [True, False, False]
    assert [page["next"] is None for page in pages] == [False, False, True]
    for size in (1, 2, len(items), 10_000):
        assert await face.using(partial(listed, size=size)) == items
    assert await face.using(lambda client: listed(client).count()) == len(items)


def _page(listed: Any, offset: int, client: Client | SyncClient) -> Any:
    return listed(client).page(1, offset)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FACES)
@EVERY
async def test_the_service_real_answers(name: str, kind: str, tmp_path: Path) -> None:
    """Where the real service answers with more than the contract says, that is returned; everywhere else the same as ever."""
    endpoint = BY_NAME[name]
    async with facing(kind, tmp_path, strict=True) as face:
        answer = await face.do(name)
        if endpoint.verb in STRICT["paused"]:
            assert answer == {"paused": endpoint.verb == "pause"}
        elif endpoint.verb in STRICT["backfill_id"]:
            assert list(answer) == ["backfill_id"]
        elif endpoint.verb == "verify":
            assert answer == (await face.service.call("domains get")).json
        else:
            check(name, answer)
