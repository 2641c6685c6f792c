"""Lane labels."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Lane
from forwarder.telemetry.labels import MAX_LABELS, OTHER, UNDECODABLE, LaneLabels, lane_label

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
