"""Precedents: what was refused alone, often enough, speaks against its like, for a while and in its lane."""

from __future__ import annotations

from forwarder.delivery.precedents import REFUSED_ALONE, VALID_SECONDS, Precedents
from forwarder.wire.strict import Oddity, Suspicion


def deep(levels: int) -> Suspicion:
    """An event nested so deep."""
    return Suspicion((Oddity.NESTED_120,), (levels,))


def test_three_that_were_refused_alone_cover_what_is_at_least_as_odd() -> None:
    """Two don't; and none of them says anything of a less odd event, or of another kind."""
    precedents = Precedents()
    for levels in (150, 140)[: REFUSED_ALONE - 1]:
        precedents.refuse(deep(levels), 0.0)
        assert not precedents.covers(deep(400), 0.0)
    precedents.refuse(deep(130), 0.0)
    assert precedents.covers(deep(400), 0.0)
    assert precedents.covers(deep(150), 0.0)
    assert not precedents.covers(deep(149), 0.0)
    assert not precedents.covers(Suspicion((Oddity.NUL, Oddity.NESTED_120), (0, 400)), 0.0)
    for _ in range(REFUSED_ALONE):
        precedents.refuse(deep(130), 0.0)
    assert precedents.covers(deep(130), 0.0)
    assert not precedents.covers(deep(129), 0.0)


def test_precedents_end() -> None:
    """After a time, or with the first event of the kind that is accepted; then the kind isn't suspected for as long."""
    precedents = Precedents()
    assert not precedents.valid(0.0)
    for _ in range(REFUSED_ALONE):
        precedents.refuse(deep(130), 0.0)
    assert precedents.covers(deep(130), VALID_SECONDS - 1)
    assert precedents.valid(VALID_SECONDS - 1)
    assert not precedents.covers(deep(130), VALID_SECONDS)
    assert not precedents.valid(VALID_SECONDS)
    precedents.refuse(deep(130), VALID_SECONDS)
    assert not precedents.covers(deep(130), VALID_SECONDS)
    for _ in range(REFUSED_ALONE):
        precedents.refuse(deep(130), VALID_SECONDS)
    precedents.accept((Oddity.NESTED_120,), VALID_SECONDS)
    assert not precedents.covers(deep(130), VALID_SECONDS)
    assert precedents.clears(deep(130), 2 * VALID_SECONDS - 1)
    assert not precedents.clears(deep(130), 2 * VALID_SECONDS)


def test_memory_is_bounded() -> None:
    """However many are refused alone, the least odd ones are kept."""
    precedents = Precedents()
    for levels in range(1000, 130, -1):
        precedents.refuse(deep(levels), 0.0)
    assert precedents.covers(deep(140), 0.0)
    ((_, known),) = precedents._refused.values()
    assert len(known) < 20
