"""The dashboards of a project, to members of each level."""

from __future__ import annotations

import pytest

from forwarder.contract.endpoints import LIST_DASHBOARDS
from forwarder.contract.kinds import ADMIN, MEMBER
from forwarder.sandbox.management.call import Bounds, Listing
from forwarder.sandbox.management.dashboards import CAN_EDIT, CAN_VIEW, NewDashboard, add_dashboard
from tests.sandbox.management.half import Half

NOW = "2026-01-01T00:00:00.000000Z"


def test_a_dashboard(half: Half) -> None:
    """It is shown as it was made, with whoever made it, or nobody."""
    project = half.project()
    add_dashboard(half.database, project, NewDashboard("One", NOW, half.owner.user, "words", True, True, True, "template", ["a", 1]))
    add_dashboard(half.database, project, NewDashboard("Two", NOW, None))
    one, two = half.items(LIST_DASHBOARDS, project=project)
    assert (one["name"], one["description"], one["created_at"], one["created_by"]["uuid"]) == ("One", "words", NOW, half.owner.uuid)
    assert (one["pinned"], one["is_shared"], one["deleted"], one["creation_mode"], one["tags"]) == (True, True, True, "template", ["a", 1])
    assert (two["created_by"], two["pinned"], two["is_shared"], two["deleted"], two["tags"]) == (None, False, False, False, [])
    assert two["id"] > one["id"]


@pytest.mark.parametrize(
    ("level", "restriction", "made", "edits"),
    [
        (MEMBER, CAN_VIEW, False, True),
        (MEMBER, CAN_EDIT, False, False),
        (MEMBER, CAN_EDIT, True, True),
        (ADMIN, CAN_EDIT, False, True),
    ],
)
def test_what_somebody_may(half: Half, level: int, restriction: int, made: bool, edits: bool) -> None:
    """A restricted dashboard is edited by admins and whoever made it, any other by every member; whoever may not can still see it."""
    project, somebody = half.project(), half.member("x@example.com", level)
    maker = somebody.user if made else half.owner.user
    add_dashboard(half.database, project, NewDashboard("One", NOW, maker, restriction_level=restriction))
    [one] = half.items(LIST_DASHBOARDS, project=project, by=somebody)
    assert (one["restriction_level"], one["effective_restriction_level"]) == (restriction, restriction)
    assert (one["effective_privilege_level"], one["user_access_level"]) == ((CAN_EDIT, "editor") if edits else (CAN_VIEW, "viewer"))


def test_pages_of_one_project(half: Half) -> None:
    """Only the project's own are listed, the oldest first, page by page."""
    project, other = half.project(), half.project()
    for number in range(5):
        add_dashboard(half.database, project, NewDashboard(f"{number}", NOW, None))
        add_dashboard(half.database, other, NewDashboard("other", NOW, None))
    pages = [half.items(LIST_DASHBOARDS, project=project, page=Bounds(2, offset)) for offset in (0, 2, 4, 6)]
    assert [[item["name"] for item in page] for page in pages] == [["0", "1"], ["2", "3"], ["4"], []]
    listing = half.call(LIST_DASHBOARDS, project=project, page=Bounds(2, 4))
    assert isinstance(listing, Listing)
    assert listing.count == 5
