"""Members and invites of an organization."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwarder.contract.endpoints import (
    BULK_INVITE,
    CREATE_INVITE,
    DELETE_INVITE,
    DELETE_MEMBER,
    LIST_INVITES,
    LIST_MEMBERS,
    UPDATE_MEMBER,
)
from forwarder.contract.resources import ADMIN, MEMBER, OWNER
from forwarder.sandbox.manage.call import PageBounds
from forwarder.sandbox.protocol.http import ManagementError
from tests.sandbox.half import ManagementTables, MemberOfHome, opened

FORBIDDEN = (403, "permission_denied", None)


def test_members_are_listed_in_the_order_in_which_they_came(half: ManagementTables) -> None:
    """Each with its user; those of other organizations are not among them."""
    half.member("admin@example.com", ADMIN)
    half.member("theirs@example.org", organization=half.organization())
    assert [item["user"]["email"] for item in half.items(LIST_MEMBERS)] == [
        "owner@example.com",
        "admin@example.com",
    ]
    assert [item["level"] for item in half.items(LIST_MEMBERS, page=PageBounds(1, 1))] == [ADMIN]
    [owner, _] = half.items(LIST_MEMBERS)
    assert (owner["is_2fa_enabled"], owner["has_social_auth"], owner["last_login"]) == (
        True,
        False,
        None,
    )
    assert owner["id"] != owner["user"]["uuid"]


def test_a_level_can_be_changed(half: ManagementTables) -> None:
    """When it was is said; a change to the same level, and one of nothing, are none."""
    member = half.member("mia@example.com", MEMBER)
    half.later(hours=1)
    changed = half.answer(UPDATE_MEMBER, {"level": ADMIN}, user__uuid=member.uuid)
    assert (changed["level"], changed["updated_at"]) == (ADMIN, "2026-01-01T01:00:00.000000Z")
    assert changed["joined_at"] == "2026-01-01T00:00:00.000000Z"
    half.later(hours=1)
    for same in ({}, {"level": ADMIN}):
        assert half.answer(UPDATE_MEMBER, same, user__uuid=member.uuid) == changed


def test_no_member_gives_a_level_above_their_own(half: ManagementTables) -> None:
    """An admin can't make an owner."""
    admin = half.member("adam@example.com", ADMIN)
    member = half.member("mia@example.com", MEMBER)
    assert (
        half.error(UPDATE_MEMBER, {"level": OWNER}, by=admin, user__uuid=member.uuid) == FORBIDDEN
    )
    assert (
        half.answer(UPDATE_MEMBER, {"level": ADMIN}, by=admin, user__uuid=member.uuid)["level"]
        == ADMIN
    )


def test_an_admin_can_remove_a_plain_member_and_another_admin(half: ManagementTables) -> None:
    """Every member who isn't above them."""
    admin = half.member("adam@example.com", ADMIN)
    for somebody in (
        half.member("mia@example.com", MEMBER),
        half.member("second@example.com", ADMIN),
    ):
        assert half.call(DELETE_MEMBER, by=admin, user__uuid=somebody.uuid) is None
    assert len(half.items(LIST_MEMBERS)) == 2


def test_no_member_changes_a_member_above_their_own_level(half: ManagementTables) -> None:
    """An admin can neither change nor remove an owner."""
    admin = half.member("adam@example.com", ADMIN)
    second = half.member("second@example.com", OWNER)
    for level in (MEMBER, ADMIN, OWNER):
        assert (
            half.error(UPDATE_MEMBER, {"level": level}, by=admin, user__uuid=second.uuid)
            == FORBIDDEN
        )
    assert half.error(DELETE_MEMBER, by=admin, user__uuid=second.uuid) == FORBIDDEN
    assert half.call(DELETE_MEMBER, by=second, user__uuid=admin.uuid) is None


def test_no_member_changes_their_own_level(half: ManagementTables) -> None:
    """Not even an owner downwards while there is another; the same level is no change."""
    half.member("second@example.com", OWNER)
    assert half.error(UPDATE_MEMBER, {"level": ADMIN}, user__uuid=half.owner.uuid) == FORBIDDEN
    assert (
        half.answer(UPDATE_MEMBER, {"level": OWNER}, user__uuid=half.owner.uuid)["level"] == OWNER
    )


def test_a_plain_member_can_leave_but_remove_no_other(half: ManagementTables) -> None:
    """Not even another plain member."""
    mia = half.member("mia@example.com", MEMBER)
    max_ = half.member("max@example.com", MEMBER)
    assert half.error(DELETE_MEMBER, by=mia, user__uuid=max_.uuid) == FORBIDDEN
    assert half.call(DELETE_MEMBER, by=mia, user__uuid=mia.uuid) is None
    assert half.error(DELETE_MEMBER, user__uuid=mia.uuid) == (404, "not_found", None)
    assert half.error(UPDATE_MEMBER, {"level": ADMIN}, user__uuid=mia.uuid) == (
        404,
        "not_found",
        None,
    )


def test_the_last_owner_can_not_leave(half: ManagementTables) -> None:
    """With a second one, either can; and owners of another organization don't count."""
    half.member("theirs@example.org", organization=half.organization())
    assert half.error(DELETE_MEMBER, user__uuid=half.owner.uuid) == (400, "last_owner", None)
    second = half.member("second@example.com", OWNER)
    assert half.call(DELETE_MEMBER, user__uuid=half.owner.uuid) is None
    assert half.error(DELETE_MEMBER, by=second, user__uuid=second.uuid) == (400, "last_owner", None)


def test_an_owner_can_demote_another(half: ManagementTables) -> None:
    """Who demotes is left as one."""
    second = half.member("second@example.com", OWNER)
    answer = half.answer(UPDATE_MEMBER, {"level": MEMBER}, by=second, user__uuid=half.owner.uuid)
    assert answer["level"] == MEMBER
    assert half.error(DELETE_MEMBER, by=second, user__uuid=second.uuid) == (400, "last_owner", None)


def test_a_member_of_two_organizations_leaves_one(half: ManagementTables) -> None:
    """The other isn't touched."""
    other = half.organization()
    half.database.execute(
        "INSERT INTO members VALUES (NULL, 'id', ?, ?, 1, '', '')", (other, half.owner.user)
    )
    half.member("second@example.com", OWNER)
    half.call(DELETE_MEMBER, user__uuid=half.owner.uuid)
    assert half.database.execute(
        "SELECT organization FROM members WHERE user = ?", (half.owner.user,)
    ).fetchall() == [(other,)]


@pytest.mark.parametrize("endpoint", [UPDATE_MEMBER, DELETE_MEMBER])
def test_another_organization_has_no_such_member(half: ManagementTables, endpoint: Any) -> None:
    """Whatever its owner wants."""
    stranger = half.member("theirs@example.org", organization=half.organization())
    assert half.error(endpoint, {"level": MEMBER}, by=stranger, user__uuid=half.owner.uuid) == (
        404,
        "not_found",
        None,
    )


_STEP = st.tuples(
    st.integers(0, 4), st.integers(0, 4), st.sampled_from([None, MEMBER, ADMIN, OWNER])
)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([MEMBER, ADMIN, OWNER]), min_size=4, max_size=4),
    st.lists(_STEP, max_size=25),
)
def test_an_organization_never_loses_its_last_owner(
    levels: list[int], steps: list[tuple[int, int, int | None]]
) -> None:
    """Any member changes any other (None: removes), in any order; and no one ever gets above who
    lifted them.
    """
    with opened() as half:
        people = [
            half.owner,
            *(half.member(f"{number}@example.com", level) for number, level in enumerate(levels)),
        ]
        for actor, target, level in steps:
            before = _levels(half)
            if people[actor].uuid in before:
                _attempt(half, people[actor], people[target], level)
                after = _levels(half)
                assert OWNER in after.values()
                assert all(
                    now <= max(before[uuid], before[people[actor].uuid])
                    for uuid, now in after.items()
                )


def _attempt(
    half: ManagementTables, actor: MemberOfHome, target: MemberOfHome, level: int | None
) -> None:
    endpoint, body = (DELETE_MEMBER, None) if level is None else (UPDATE_MEMBER, {"level": level})
    if _levels(half)[actor.uuid] < endpoint.level:
        return  # the dispatcher doesn't let them in
    outcome = half.outcome(endpoint, body, by=actor, user__uuid=target.uuid)
    assert not isinstance(outcome, ManagementError) or outcome.status in (400, 403, 404)


def _levels(half: ManagementTables) -> dict[str, int]:
    return dict(
        half.database.execute(
            "SELECT uuid, level FROM members JOIN users ON users.id = members.user"
        ).fetchall()
    )


NINA = {"target_email": "nina@example.com"}


def listed(half: ManagementTables) -> list[str]:
    """The addresses of all invites."""
    return [invite["target_email"] for invite in half.items(LIST_INVITES)]


def access(*entries: tuple[int, str]) -> list[dict[str, Any]]:
    """Access to projects."""
    return [{"id": project, "level": level} for project, level in entries]


def test_an_invite_takes_an_address(half: ManagementTables) -> None:
    """Everything else has a default: a plain member, an e-mail, no message."""
    invite = half.answer(CREATE_INVITE, NINA)
    assert len(invite.pop("id")) == 36
    assert invite.pop("created_by")["email"] == "owner@example.com"
    assert invite == {
        "target_email": "nina@example.com",
        "first_name": "",
        "emailing_attempt_made": True,
        "level": MEMBER,
        "is_expired": False,
        "created_at": "2026-01-01T00:00:00.000000Z",
        "updated_at": "2026-01-01T00:00:00.000000Z",
        "message": "",
        "private_project_access": None,
        "send_email": True,
        "combine_pending_invites": False,
    }


def test_an_invite_keeps_what_was_sent(half: ManagementTables) -> None:
    """Whether an e-mail would be sent is up to `send_email`."""
    sent = {
        **NINA,
        "first_name": "Nina ☃",
        "level": ADMIN,
        "message": "Come\nin",
        "send_email": False,
        "combine_pending_invites": True,
        "private_project_access": access((half.project(), "admin")),
    }
    invite = half.answer(CREATE_INVITE, sent)
    assert {**invite, **sent, "emailing_attempt_made": False} == invite


def test_an_invite_expires_after_three_days(half: ManagementTables) -> None:
    """It stays in the list, and can be taken back still."""
    invite = half.answer(CREATE_INVITE, NINA)
    half.later(days=2, hours=23, minutes=59, seconds=59.999999)
    assert half.items(LIST_INVITES) == [invite]
    half.later(microseconds=1)
    assert half.items(LIST_INVITES) == [{**invite, "is_expired": True}]
    half.call(DELETE_INVITE, id=invite["id"])
    assert listed(half) == []


def test_only_the_domain_of_an_address_is_put_into_lower_case(half: ManagementTables) -> None:
    """What stands before the @ can matter to its server."""
    assert (
        half.answer(CREATE_INVITE, {"target_email": "Nina.X@EXAMPLE.com"})["target_email"]
        == "Nina.X@example.com"
    )
    assert (
        half.answer(CREATE_INVITE, {"target_email": "Ñina@BÜCHER.example"})["target_email"]
        == "Ñina@bücher.example"
    )


@pytest.mark.parametrize("second", ["NINA@example.com", "nina@Example.COM"])
def test_a_new_invite_replaces_one_for_the_same_address(
    half: ManagementTables, second: str
) -> None:
    """In any case of letters, with another id and all its time to go; an expired one goes too."""
    first = half.answer(CREATE_INVITE, {**NINA, "level": ADMIN})
    half.answer(CREATE_INVITE, {"target_email": "otto@example.com"})
    half.later(days=5)
    again = half.answer(CREATE_INVITE, {"target_email": second})
    assert again["id"] != first["id"]
    assert (again["level"], again["is_expired"]) == (MEMBER, False)
    assert listed(half) == ["otto@example.com", again["target_email"]]


def test_addresses_beyond_ascii_are_compared_without_case_too(half: ManagementTables) -> None:
    """But a letter that only becomes an ASCII one in another case (K for Kelvin) doesn't make two
    addresses the same.
    """
    half.answer(CREATE_INVITE, {"target_email": "müller@example.com"})
    half.answer(CREATE_INVITE, {"target_email": "MÜLLER@example.com"})
    half.answer(CREATE_INVITE, {"target_email": "ken@example.com"})
    half.answer(CREATE_INVITE, {"target_email": "\u212aen@example.com"})
    assert listed(half) == ["MÜLLER@example.com", "ken@example.com", "\u212aen@example.com"]
    half.member("Jürgen@example.com")
    assert half.error(CREATE_INVITE, {"target_email": "JÜRGEN@example.com"}) == (
        400,
        "already_member",
        "target_email",
    )


def test_invites_of_another_organization_stay(half: ManagementTables) -> None:
    """Even for the same address; and no one else can take them back."""
    other = half.member("other@example.org", organization=half.organization())
    theirs = half.answer(CREATE_INVITE, NINA, by=other)
    ours = half.answer(CREATE_INVITE, NINA)
    assert half.items(LIST_INVITES, by=other) == [theirs]
    assert half.error(DELETE_INVITE, by=other, id=ours["id"]) == (404, "not_found", None)
    assert half.answer(CREATE_INVITE, {"target_email": "owner@example.com"}, by=other)


def test_a_member_can_not_be_invited(half: ManagementTables) -> None:
    """In any case of letters."""
    for email in ("owner@example.com", "OWNER@example.COM"):
        assert half.error(CREATE_INVITE, {"target_email": email}) == (
            400,
            "already_member",
            "target_email",
        )


def test_no_member_invites_above_their_own_level(half: ManagementTables) -> None:
    """An admin can't invite an owner, a plain member only plain members."""
    admin = half.member("adam@example.com", ADMIN)
    member = half.member("mia@example.com", MEMBER)
    assert half.error(CREATE_INVITE, {**NINA, "level": OWNER}, by=admin) == FORBIDDEN
    assert half.error(CREATE_INVITE, {**NINA, "level": ADMIN}, by=member) == FORBIDDEN
    assert half.answer(CREATE_INVITE, {**NINA, "level": ADMIN}, by=admin)["level"] == ADMIN
    answer = half.answer(CREATE_INVITE, {"target_email": "otto@example.com"}, by=member)
    assert answer["created_by"]["email"] == "mia@example.com"


def test_plain_members_take_back_their_own_invites_and_admins_all(half: ManagementTables) -> None:
    """An invite that was taken back is gone."""
    admin = half.member("adam@example.com", ADMIN)
    member = half.member("mia@example.com", MEMBER)
    theirs = half.answer(CREATE_INVITE, NINA)["id"]
    own = half.answer(CREATE_INVITE, {"target_email": "otto@example.com"}, by=member)["id"]
    assert half.error(DELETE_INVITE, by=member, id=theirs) == FORBIDDEN
    assert half.call(DELETE_INVITE, by=member, id=own) is None
    assert half.call(DELETE_INVITE, by=admin, id=theirs) is None
    assert half.error(DELETE_INVITE, by=admin, id=theirs) == (404, "not_found", None)


def test_combined_invites_have_the_highest_level_and_all_access(half: ManagementTables) -> None:
    """Of those that haven't expired; first name and message are the new one's."""
    one, two, three = (half.project() for _ in range(3))
    half.answer(
        CREATE_INVITE, {**NINA, "level": OWNER, "private_project_access": access((three, "admin"))}
    )
    half.later(days=3)
    half.answer(
        CREATE_INVITE,
        {**NINA, "level": ADMIN, "private_project_access": access((one, "admin"), (two, "member"))},
    )
    new = {
        **NINA,
        "message": "Again",
        "combine_pending_invites": True,
        "private_project_access": access((one, "member"), (two, "admin")),
    }
    # The second replaced the expired first one, whose level and access don't count.
    invite = half.answer(CREATE_INVITE, new)
    assert (invite["level"], invite["message"]) == (ADMIN, "Again")
    assert invite["private_project_access"] == access((one, "admin"), (two, "admin"))
    answer = half.answer(CREATE_INVITE, {**NINA, "combine_pending_invites": True})
    assert answer["private_project_access"] == invite["private_project_access"]
    half.later(days=4)
    last = half.answer(CREATE_INVITE, {**NINA, "combine_pending_invites": True})
    assert (last["level"], last["private_project_access"]) == (MEMBER, None)


@pytest.mark.parametrize("combine", [True, False])
def test_a_pending_invite_above_ones_level_stays(half: ManagementTables, *, combine: bool) -> None:
    """Who couldn't take it back can't put one of a lower level in its place
    either, until it has expired.
    """
    member = half.member("mia@example.com", MEMBER)
    pending = half.answer(CREATE_INVITE, {**NINA, "level": ADMIN})
    assert (
        half.error(CREATE_INVITE, {**NINA, "combine_pending_invites": combine}, by=member)
        == FORBIDDEN
    )
    assert half.items(LIST_INVITES) == [pending]
    half.later(days=3)
    assert (
        half.answer(CREATE_INVITE, {**NINA, "combine_pending_invites": combine}, by=member)["level"]
        == MEMBER
    )


def test_access_is_to_projects_of_the_organization(half: ManagementTables) -> None:
    """Others, and numbers that no project has, are refused."""
    theirs = half.project(half.organization())
    ours = half.project()
    for project in (theirs, 987_654, 0, -1, 2**80):
        sent = {**NINA, "private_project_access": access((ours, "member"), (project, "member"))}
        assert half.error(CREATE_INVITE, sent) == (400, "does_not_exist", "private_project_access")
    assert (
        half.answer(CREATE_INVITE, {**NINA, "private_project_access": []})["private_project_access"]
        == []
    )
    twice = {**NINA, "private_project_access": access((ours, "admin"), (ours, "member"))}
    assert half.answer(CREATE_INVITE, twice)["private_project_access"] == access((ours, "admin"))


def test_a_bulk_invites_all_or_none(half: ManagementTables) -> None:
    """The entry that is wrong is named; nothing is answered when all are invited."""
    half.answer(CREATE_INVITE, NINA)
    wrong = [{"target_email": "new@example.com"}, NINA, {"target_email": "owner@example.com"}]
    assert half.error(BULK_INVITE, wrong) == (400, "already_member", "2__target_email")
    member = half.member("mia@example.com", MEMBER)
    assert (
        half.error(
            BULK_INVITE, [{"target_email": "a@example.com"}, {**NINA, "level": ADMIN}], by=member
        )
        == FORBIDDEN
    )
    assert half.call(BULK_INVITE, wrong[:2]) is None
    assert listed(half) == ["new@example.com", "nina@example.com"]
    assert half.call(BULK_INVITE, NINA) is None
    assert half.error(BULK_INVITE, wrong[2:]) == (400, "already_member", "0__target_email")
    assert half.error(BULK_INVITE, wrong[2]) == (400, "already_member", "target_email")
    assert half.call(BULK_INVITE, [], strict=True) is None


def test_a_bulk_has_at_most_twenty_entries(half: ManagementTables) -> None:
    """Twenty are fine; the same address twice is one invite, the last."""
    many = [{"target_email": f"{number}@example.com"} for number in range(21)]
    assert half.error(BULK_INVITE, many) == (400, "max_length", None)
    half.call(BULK_INVITE, many[:20])
    assert len(listed(half)) == 20
    half.call(BULK_INVITE, [{**NINA, "level": ADMIN}, {**NINA, "level": MEMBER}])
    assert [invite["level"] for invite in half.items(LIST_INVITES, page=PageBounds(100, 20))] == [
        MEMBER
    ]


_ADDRESS = st.sampled_from(
    ["a@example.com", "A@example.com", "b@example.com", "ä@example.com", "Ä@EXAMPLE.com"]
)
_LEVEL = st.sampled_from([MEMBER, ADMIN, OWNER])
_ACCESS = st.none() | st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["member", "admin"])), max_size=4
)
_INVITED = st.tuples(
    _ADDRESS, _LEVEL, _ACCESS, st.booleans(), st.sampled_from([0.0, 1.0, 2.0, 3.0])
)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(_INVITED, max_size=12), _LEVEL)
def test_an_address_has_at_most_one_invite(
    invited: list[tuple[str, int, Any, bool, float]], level: int
) -> None:
    """Whatever is invited, when and how; and what is combined is the highest level and the union
    of access of what was pending.
    """
    with opened() as half:
        _ = [half.project() for _ in range(3)]
        by = half.member("somebody@example.com", level)
        for email, wanted, projects, combine, days in invited:
            half.later(days=days)
            pending = [
                invite
                for invite in half.items(LIST_INVITES)
                if not invite["is_expired"] and _same(invite["target_email"], email)
            ]
            assert len(pending) <= 1
            body = {
                "target_email": email,
                "level": wanted,
                "combine_pending_invites": combine,
                "private_project_access": None if projects is None else access(*projects),
            }
            highest = max([wanted, *(invite["level"] for invite in pending)])
            made = half.outcome(CREATE_INVITE, body, by=by)
            if isinstance(made, ManagementError):
                assert (made.status, highest > level) == (403, True)
            else:
                assert made["level"] == (highest if combine else wanted) <= highest <= level
                assert _pairs([body, *(pending if combine else [])]) == _pairs([made])
            folded = [invite["target_email"].casefold() for invite in half.items(LIST_INVITES)]
            assert len(folded) == len(set(folded))


def _same(first: str, second: str) -> bool:
    return first.casefold() == second.casefold()


def _pairs(invites: list[dict[str, Any]]) -> dict[int, str]:
    """The highest access to each project."""
    entries = [entry for invite in invites for entry in invite["private_project_access"] or []]
    return {
        entry["id"]: min(other["level"] for other in entries if other["id"] == entry["id"])
        for entry in entries
    }
