"""Lane labels."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Lane
from forwarder.telemetry.labels import (
    MAX_LABELS,
    OTHER,
    UNDECODABLE,
    LaneLabels,
    LaneNames,
    lane_label,
)
from tests.support.cases import cases

KEY = "phc_abcdefghijklmnop"


def test_label_shows_prefix_last_four_and_hash() -> None:
    """A label is the key's prefix, its last four characters and six digits of its SHA-256."""
    assert lane_label(Lane(KEY)) == "phc_…mnop#" + hashlib.sha256(KEY.encode()).hexdigest()[:6]


def test_historical_lane_is_named_so() -> None:
    """A historical lane's label is its key's with `/historical` appended."""
    assert lane_label(Lane(KEY, historical=True)) == lane_label(Lane(KEY)) + "/historical"


def test_short_key_shows_none_of_itself() -> None:
    """Of a short key four characters would be too much: none is shown."""
    label = lane_label(Lane("abcd"))
    assert "abcd" not in label
    assert label.startswith("…#")


NAMES = LaneNames({KEY: "shop", "phc_of_the_destination": "blog"})


@cases("end", ["", "/historical", "@eu", "/historical@eu"])
def test_a_name_stands_for_the_key_in_a_label(end: str) -> None:
    """What follows the key stays, and the name leads back to the label."""
    label = lane_label(Lane(KEY)) + end
    assert (NAMES.name(label), NAMES.show(label)) == (f"shop{end}", f"shop{end}")
    assert NAMES.labels(f"shop{end}") == NAMES.labels(label) == (label,)
    assert NAMES.beside(label) == {"lane_name": f"shop{end}"}


def test_a_name_may_have_several_labels() -> None:
    """Where its key is another one at a destination."""
    keys = KEY, "phc_of_the_destination"
    names = LaneNames(dict.fromkeys(keys, "shop"))
    assert names.labels("") == ()
    assert names.labels("shop@eu") == tuple(f"{lane_label(Lane(key))}@eu" for key in keys)


@cases("label", [lane_label(Lane("phc_another_project")), OTHER, UNDECODABLE, "shop", ""])
def test_a_lane_without_a_name_has_its_label(label: str) -> None:
    """Also those that stand for several lanes or for none."""
    assert (NAMES.name(label), NAMES.show(label), NAMES.beside(label)) == ("", label, {})


@given(st.text(max_size=80))
def test_label_never_holds_the_key(key: str) -> None:
    """Whatever a sender uses as a key, the label shows at most four of its characters, and only
    harmless ones.
    """
    label = lane_label(Lane(key))
    assert len(label) <= len("phc_…1234#123456")
    assert label.isprintable()
    assert not set(label) & set('"<>&\\\n{}')


def test_labels_are_given_first_come_and_kept() -> None:
    """The first lanes get a label of their own and keep it; the rest are `other`."""
    labels = LaneLabels(limit=2)
    a, b, c = (Lane(f"phc_key_number_{name}") for name in "abc")
    assert [labels.label(lane) for lane in (a, b, c)] == [lane_label(a), lane_label(b), OTHER]
    assert [labels.label(lane) for lane in (c, b)] == [OTHER, lane_label(b)]


def test_undecodable_takes_no_place() -> None:
    """Events without a lane are `none`, which counts towards no limit."""
    labels = LaneLabels(limit=1)
    assert labels.label(None) == UNDECODABLE
    assert labels.label(Lane(KEY)) == lane_label(Lane(KEY))


def test_made_up_keys_make_no_more_than_the_limit() -> None:
    """Ten thousand made-up keys get 200 labels and `other`."""
    labels = LaneLabels()
    assert (
        len({labels.label(Lane(f"phc_made_up_{number:09}")) for number in range(10_000)})
        == MAX_LABELS + 1
    )
