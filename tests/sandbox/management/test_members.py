"""Members: their levels, who may touch whom, and that an owner is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.endpoints import DELETE_MEMBER, LIST_MEMBERS, UPDATE_MEMBER
from forwarder.contract.kinds import ADMIN, MEMBER, OWNER
from forwarder.sandbox.management.call import Bounds, ManagementError
from tests.sandbox.management.half import Half, Somebody, opened

FORBIDDEN = (403, "permission_denied", None)


def level_of(half: Half, somebody: Somebody) -> int:
    """What somebody is now."""
    (level,) = [item["level"] for item in half.items(LIST_MEMBERS) if item["user"]["uuid"] == somebody.uuid]
    assert isinstance(level, int)
    return level


def test_members_are_listed_in_the_order_in_which_they_came(half: Half) -> None:
    """Each with its user; those of other organizations are not among them."""
    half.member("admin@example.com", ADMIN)
    half.member("theirs@example.org", organization=half.organization())
    assert [item["user"]["email"] for item in half.items(LIST_MEMBERS)] == ["owner@example.com", "admin@example.com"]
    assert [item["level"] for item in half.items(LIST_MEMBERS, page=Bounds(1, 1))] == [ADMIN]
    [owner, _] = half.items(LIST_MEMBERS)
    assert (owner["is_2fa_enabled"], owner["has_social_auth"], owner["last_login"]) == (True, False, None)
    assert owner["id"] != owner["user"]["uuid"]


def test_a_level_can_be_changed(half: Half) -> None:
    """When it was is said; a change to the same level, and one of nothing, are none."""
    member = half.member("mia@example.com", MEMBER)
    half.later(hours=1)
    changed = half.answer(UPDATE_MEMBER, {"level": ADMIN}, user__uuid=member.uuid)
    assert (changed["level"], changed["updated_at"]) == (ADMIN, "2026-01-01T01:00:00.000000Z")
    assert changed["joined_at"] == "2026-01-01T00:00:00.000000Z"
    half.later(hours=1)
    for same in ({}, {"level": ADMIN}):
        assert half.answer(UPDATE_MEMBER, same, user__uuid=member.uuid) == changed


def test_nobody_gives_a_level_above_their_own(half: Half) -> None:
    """An admin can't make an owner."""
    admin, member = half.member("adam@example.com", ADMIN), half.member("mia@example.com", MEMBER)
    assert half.error(UPDATE_MEMBER, {"level": OWNER}, by=admin, user__uuid=member.uuid) == FORBIDDEN
    assert half.answer(UPDATE_MEMBER, {"level": ADMIN}, by=admin, user__uuid=member.uuid)["level"] == ADMIN


def test_an_admin_can_remove_a_plain_member_and_another_admin(half: Half) -> None:
    """Whoever isn't above them."""
    admin = half.member("adam@example.com", ADMIN)
    for somebody in (half.member("mia@example.com", MEMBER), half.member("second@example.com", ADMIN)):
        assert half.call(DELETE_MEMBER, by=admin, user__uuid=somebody.uuid) is None
    assert len(half.items(LIST_MEMBERS)) == 2


def test_nobody_touches_a_member_above_their_own_level(half: Half) -> None:
    """An admin can neither change nor remove an owner."""
    admin, second = half.member("adam@example.com", ADMIN), half.member("second@example.com", OWNER)
    for level in (MEMBER, ADMIN, OWNER):
        assert half.error(UPDATE_MEMBER, {"level": level}, by=admin, user__uuid=second.uuid) == FORBIDDEN
    assert half.error(DELETE_MEMBER, by=admin, user__uuid=second.uuid) == FORBIDDEN
    assert half.call(DELETE_MEMBER, by=second, user__uuid=admin.uuid) is None


def test_nobody_changes_their_own_level(half: Half) -> None:
    """Not even an owner downwards while there is another; the same level is no change."""
    half.member("second@example.com", OWNER)
    assert half.error(UPDATE_MEMBER, {"level": ADMIN}, user__uuid=half.owner.uuid) == FORBIDDEN
    assert half.answer(UPDATE_MEMBER, {"level": OWNER}, user__uuid=half.owner.uuid)["level"] == OWNER


def test_a_plain_member_can_leave_and_remove_nobody(half: Half) -> None:
    """Not even another plain member."""
    mia, max_ = half.member("mia@example.com", MEMBER), half.member("max@example.com", MEMBER)
    assert half.error(DELETE_MEMBER, by=mia, user__uuid=max_.uuid) == FORBIDDEN
    assert half.call(DELETE_MEMBER, by=mia, user__uuid=mia.uuid) is None
    assert half.error(DELETE_MEMBER, user__uuid=mia.uuid) == (404, "not_found", None)
    assert half.error(UPDATE_MEMBER, {"level": ADMIN}, user__uuid=mia.uuid) == (404, "not_found", None)


def test_the_last_owner_can_not_leave(half: Half) -> None:
    """With a second one, either can; and owners of another organization don't count."""
    half.member("theirs@example.org", organization=half.organization())
    assert half.error(DELETE_MEMBER, user__uuid=half.owner.uuid) == (400, "last_owner", None)
    second = half.member("second@example.com", OWNER)
    assert half.call(DELETE_MEMBER, user__uuid=half.owner.uuid) is None
    assert half.error(DELETE_MEMBER, by=second, user__uuid=second.uuid) == (400, "last_owner", None)


def test_an_owner_can_demote_another(half: Half) -> None:
    """Who demotes is left as one."""
    second = half.member("second@example.com", OWNER)
    assert half.answer(UPDATE_MEMBER, {"level": MEMBER}, by=second, user__uuid=half.owner.uuid)["level"] == MEMBER
    assert half.error(DELETE_MEMBER, by=second, user__uuid=second.uuid) == (400, "last_owner", None)


def test_somebody_in_two_organizations_leaves_one(half: Half) -> None:
    """The other isn't touched."""
    other = half.organization()
    half.database.execute("INSERT INTO members VALUES (NULL, 'id', ?, ?, 1, '', '')", (other, half.owner.user))
    half.member("second@example.com", OWNER)
    half.call(DELETE_MEMBER, user__uuid=half.owner.uuid)
    assert half.database.execute("SELECT organization FROM members WHERE user = ?", (half.owner.user,)).fetchall() == [(other,)]


@pytest.mark.parametrize("endpoint", [UPDATE_MEMBER, DELETE_MEMBER])
def test_another_organization_has_no_such_member(half: Half, endpoint: Any) -> None:
    """Whatever its owner wants."""
    stranger = half.member("theirs@example.org", organization=half.organization())
    assert half.error(endpoint, {"level": MEMBER}, by=stranger, user__uuid=half.owner.uuid) == (404, "not_found", None)


_STEP = st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from([None, MEMBER, ADMIN, OWNER]))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([MEMBER, ADMIN, OWNER]), min_size=4, max_size=4), st.lists(_STEP, max_size=25))
def test_an_organization_never_loses_its_last_owner(levels: list[int], steps: list[tuple[int, int, int | None]]) -> None:
    """Whoever does whatever to whom (None: removes), in any order; and nobody ever gets above who lifted them."""
    with opened() as half:
        people = [half.owner, *(half.member(f"{number}@example.com", level) for number, level in enumerate(levels))]
        for actor, target, level in steps:
            before = _levels(half)
            if people[actor].uuid in before:
                _attempt(half, people[actor], people[target], level)
                after = _levels(half)
                assert OWNER in after.values()
                assert all(now <= max(before[uuid], before[people[actor].uuid]) for uuid, now in after.items())


def _attempt(half: Half, actor: Somebody, target: Somebody, level: int | None) -> None:
    endpoint, body = (DELETE_MEMBER, None) if level is None else (UPDATE_MEMBER, {"level": level})
    if _levels(half)[actor.uuid] < endpoint.level:
        return  # the dispatcher doesn't let them in
    outcome = half.outcome(endpoint, body, by=actor, user__uuid=target.uuid)
    assert not isinstance(outcome, ManagementError) or outcome.status in (400, 403, 404)


def _levels(half: Half) -> dict[str, int]:
    return dict(half.database.execute("SELECT uuid, level FROM members JOIN users ON users.id = members.user").fetchall())
