"""Finding an event by its uuid."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwarder.admin.event_lookup import NotAUuid, WantedUuid
from forwarder.core.event import NO_IDS, Chunk, Lane
from tests.support.cases import cases

UUID_TEXT = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER = "01890a5d-ac96-774b-bcce-b302099a8058"
SPELLINGS = [
    UUID_TEXT,
    UUID_TEXT.upper(),
    UUID_TEXT.replace("-", ""),
    f"{{{UUID_TEXT}}}",
    f"urn:uuid:{UUID_TEXT}",
]


def event(uuid: object, **more: object) -> bytes:
    """An event with this uuid."""
    return json.dumps({"event": "e", "uuid": uuid, **more}).encode()


@cases("given_as", SPELLINGS)
@cases("stored_as", SPELLINGS)
def test_every_spelling_finds_every_spelling(given_as: str, stored_as: str) -> None:
    """What a person types and what a sender sent need not look alike."""
    assert WantedUuid.parse(given_as).is_of(event(stored_as))


@cases(
    "data",
    [
        event(OTHER),
        event(OTHER, properties={"uuid": UUID_TEXT, "cause": UUID_TEXT}),
        event(None, distinct_id=UUID_TEXT),
        event(5, distinct_id=UUID_TEXT),
        event(UUID_TEXT + "0"),
        b'"%b"' % UUID_TEXT.encode(),
        b'{"uuid": "%b"' % UUID_TEXT.encode(),
    ],
)
def test_a_uuid_elsewhere_in_an_event_is_not_its_own(data: bytes) -> None:
    """The bytes only say where to look."""
    wanted = WantedUuid.parse(UUID_TEXT)
    assert wanted.may_be_in(data) or OTHER.encode() in data
    assert not wanted.is_of(data)


def test_the_copies_in_a_chunk_are_counted() -> None:
    """An event that came twice in a request is there twice."""
    events = [event(UUID_TEXT), event(OTHER), event(UUID_TEXT.upper())]
    chunk = Chunk(Lane("phc_k"), b",".join(events), 3, NO_IDS, 1.0)
    assert WantedUuid.parse(UUID_TEXT).count_in(chunk) == 2
    assert WantedUuid.parse("00000000-0000-0000-0000-000000000000").count_in(chunk) == 0


@cases("text", ["", "phc_key", "01890a5d", "g" * 32])
def test_an_invalid_uuid_is_reported(text: str) -> None:
    """With an example of one."""
    with pytest.raises(NotAUuid, match="is not a UUID") as caught:
        WantedUuid.parse(text)
    assert UUID_TEXT in caught.value.hint


@given(st.uuids(), st.uuids())
def test_it_finds_itself_and_nothing_else(one: UUID, other: UUID) -> None:
    """Whatever the uuid."""
    assert WantedUuid.parse(str(one)).is_of(event(str(one)))
    assert WantedUuid.parse(str(one)).is_of(event(str(other))) == (one == other)


@cases(
    "data",
    [
        event(UUID_TEXT),
        event(UUID_TEXT, half="\ud800"),
        event(None, attributes={"uuid": UUID_TEXT}),
        b'not JSON: "%b"' % UUID_TEXT.encode(),
    ],
)
def test_dead_letter_that_is_no_event_is_found_by_what_is_in_it(data: bytes) -> None:
    """As in the files, where such a letter has no uuid of its own either."""
    assert WantedUuid.parse(UUID_TEXT).is_of_letter(data)


@cases("data", [event(OTHER), event(OTHER, cause=UUID_TEXT), event("x", cause=UUID_TEXT)])
def test_dead_letter_of_another_event_is_not_found(data: bytes) -> None:
    """Its own uuid can be read, and is another."""
    assert not WantedUuid.parse(UUID_TEXT).is_of_letter(data)
