"""How much of the buffer a lane may hold: the one rule over free bytes, compared with a model in
fractions.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forwarder.buffer.holdings import assign_pools
from forwarder.buffer.memory import MemoryBuffer
from forwarder.core.errors import BufferFull, LaneFull, RequestTooLarge
from forwarder.core.event import CHUNK_OVERHEAD, EVENT_OVERHEAD, Chunk, Lane
from forwarder.core.ports import DropReason
from forwarder.intake.lane_registry import KnownKeys, Quotas

LIMIT = 80_000
OVERHEAD = CHUNK_OVERHEAD + EVENT_OVERHEAD
A, B, C, X, Y = (Lane(f"phc_{letter}") for letter in "abcxy")
OLD_A = Lane("phc_a", historical=True)
OLD_B = Lane("phc_b", historical=True)
OLD_X = Lane("phc_x", historical=True)
KNOWN = ("phc_a", "phc_b", "phc_c")


def chunk(lane: Lane, cost: int) -> Chunk:
    """A chunk that counts for so many bytes."""
    return Chunk(lane, b"x" * (cost - OVERHEAD), 1, frozenset(), 0.0)


class QuotaRig:
    """Quotas over a buffer in memory."""

    def __init__(
        self,
        *,
        known: Collection[str] = KNOWN,
        halted: Collection[Lane] = (),
        verifiable: bool = True,
    ) -> None:
        self.asked: list[str] = []
        self.known = KnownKeys((), known, verifiable=verifiable)
        self.buffer = MemoryBuffer(LIMIT)
        self.buffer.pool_of = self.known.pool_of
        self.known.on_change = lambda: assign_pools(self.buffer.holdings, self.known.pool_of)
        self.quotas = Quotas(self.buffer, halted, self.known, self.asked.append)

    def hold(self, lane: Lane, cost: int) -> QuotaRig:
        """Put something into the buffer, whatever the quotas say."""
        self.buffer.offer([chunk(lane, cost)])
        return self

    def accept(self, *costs: tuple[Lane, int]) -> None:
        """Ask, and put it there."""
        chunks = [chunk(lane, cost) for lane, cost in costs]
        self.quotas.check(chunks)
        self.buffer.offer(chunks)

    def most(self, lane: Lane) -> int:
        """How many bytes more the lane may hold now, by asking."""
        low = OVERHEAD - 1
        high = LIMIT
        while low < high:
            middle = (low + high + 1) // 2
            try:
                self.quotas.check([chunk(lane, middle)])
            except (BufferFull, LaneFull, RequestTooLarge):
                high = middle - 1
            else:
                low = middle
        return low


def test_a_single_lane_may_fill_seven_eighths() -> None:
    """To the byte, at once or bit by bit; then its sender waits, and another lane finds seven
    eighths of the rest.
    """
    assert QuotaRig().most(A) == LIMIT * 7 // 8
    rig = QuotaRig().hold(A, 30_000)
    assert rig.most(A) == 40_000
    rig.accept((A, 40_000))
    with pytest.raises(LaneFull):
        rig.accept((A, OVERHEAD))
    assert rig.most(B) == 10_000 * 7 // 8
    rig.accept((B, 5_000))


def test_the_shares_of_the_other_kinds() -> None:
    """A half for a historical lane, a quarter for a halted one, an eighth for all unknown keys
    together; the least of what applies.
    """
    rig = QuotaRig(halted={B, OLD_B, X})
    assert rig.most(OLD_A) == LIMIT // 2
    assert rig.most(X) == rig.most(Y) == rig.most(OLD_X) == LIMIT // 8
    for lane in (B, OLD_B):
        held = QuotaRig(halted={lane}).hold(lane, OVERHEAD)
        assert held.most(lane) == LIMIT // 4 - OVERHEAD
    rig.hold(X, 6_000)
    assert rig.most(Y) == LIMIT // 8 - 6_000
    assert rig.most(A) == (LIMIT - 6_000) * 7 // 8


def test_a_halted_lane_that_holds_nothing_gets_what_it_is_probed_with() -> None:
    """However large: else its sender or source, which offers the same again and again, would wait
    for a lane that nothing is there to resume.
    """
    rig = QuotaRig(halted={B})
    assert rig.most(B) == LIMIT * 7 // 8
    rig.accept((B, LIMIT // 2))
    with pytest.raises(LaneFull):
        rig.accept((B, OVERHEAD))


def test_made_up_keys_leave_the_rest_to_known_ones() -> None:
    """However many lanes they open: what they may hold they hold together."""
    rig = QuotaRig()
    for number in range(10):
        rig.accept((Lane(f"phc_made_up_{number}"), 1_000))
    with pytest.raises(LaneFull):
        rig.accept((Lane("phc_made_up_10"), 1_000))
    assert rig.buffer.used == LIMIT // 8
    assert rig.asked == ["phc_made_up_10"]
    assert rig.most(A) == (LIMIT - LIMIT // 8) * 7 // 8


def test_a_key_that_is_verified_leaves_the_pool_of_unknown_ones() -> None:
    """With what it holds, and with its historical lane; and one that isn't configured any more
    comes back into it.
    """
    rig = QuotaRig().hold(X, 6_000).hold(OLD_X, 3_000)
    assert (rig.known.unknown.bytes, rig.known.unknown.lanes) == (9_000, 2)
    rig.known.verify("phc_x")
    assert (rig.known.unknown.bytes, rig.known.unknown.lanes) == (0, 0)
    rig.accept((X, 50_000))
    rig = QuotaRig(known=())
    rig.known.configure(["phc_a"])
    rig.hold(A, 6_000)
    assert rig.known.unknown.lanes == 0
    rig.known.configure(["phc_b"])
    assert (rig.known.unknown.bytes, rig.known.unknown.lanes) == (6_000, 1)


def test_while_no_key_is_known_unknown_ones_leave_the_reserve() -> None:
    """Together; so that the first key that is verified finds room."""
    rig = QuotaRig(known=())
    assert rig.most(X) == LIMIT * 7 // 8
    rig.accept((X, 30_000))
    rig.accept((Y, 40_000))
    with pytest.raises(LaneFull):
        rig.accept((Lane("phc_z"), OVERHEAD))
    rig.known.verify("phc_a")
    assert rig.most(A) == 10_000 * 7 // 8
    rig.accept((A, 5_000))


def test_without_the_key_check_a_source_alone_makes_no_sender_unknown() -> None:
    """They could never become known; with a list of keys for senders they are."""
    rig = QuotaRig(verifiable=False)
    assert rig.most(X) == LIMIT * 7 // 8
    rig.known.configure(["phc_c"])
    assert rig.most(X) == LIMIT // 8
    with pytest.raises(RequestTooLarge):
        rig.accept((X, LIMIT // 8 + 1))
    rig.hold(X, 5_000)
    with pytest.raises(LaneFull):
        rig.accept((X, LIMIT // 8 - 4_999))


def test_too_large_is_only_what_an_empty_buffer_could_not_hold() -> None:
    """A halted lane may resume and a key be verified, so their senders may come again."""
    rig = QuotaRig(halted={B})
    for costs in (
        [(A, LIMIT * 7 // 8 + 1)],
        [(OLD_A, LIMIT // 2 + 1)],
        [(C, 10_000), (A, 62_000)],
        [(A, 50_000), (C, 30_001)],
    ):
        with pytest.raises(RequestTooLarge):
            rig.accept(*costs)
    for lane, cost in ((X, LIMIT * 7 // 8), (OLD_X, LIMIT // 2)):
        with pytest.raises(LaneFull):
            rig.accept((lane, cost))
    assert rig.buffer.used == 0
    rig.hold(B, OVERHEAD)
    with pytest.raises(LaneFull):
        rig.accept((B, LIMIT // 2))


def test_lanes_of_one_request_count_together() -> None:
    """A request can't pass with two lanes what it couldn't pass with one."""
    QuotaRig().accept((X, 5_000), (Y, 5_000))
    rig = QuotaRig()
    with pytest.raises(LaneFull):
        rig.accept((X, 5_000), (Y, 5_001))
    assert rig.asked == ["phc_x", "phc_y"]
    with pytest.raises(LaneFull):
        QuotaRig().hold(A, 60_000).accept((A, 5_000), (B, 9_000))


def test_a_request_without_room_is_rejected_before_parsing() -> None:
    """Bytes alone tell that a lane is full; what an empty lane could never hold is left for the
    check that says so.
    """
    rig = QuotaRig().hold(A, 60_000)
    rig.quotas.check_room(A, 10_000)
    with pytest.raises(LaneFull):
        rig.quotas.check_room(A, 10_001)
    rig.quotas.check_room(A, LIMIT * 7 // 8 + 1)
    rig.quotas.check_room(B, 17_500)


def test_the_most_events_that_a_lane_could_hold() -> None:
    """Even without any bytes of their own, more than these are over its share."""
    most = QuotaRig().quotas.max_events
    assert Chunk(A, b"", most + 1, frozenset(), 0.0).cost > LIMIT * 7 // 8


def test_where_the_oldest_may_be_dropped() -> None:
    """In the full lane, then anywhere; for unknown keys among unknown ones only, and never
    elsewhere for a halted or a historical lane.
    """
    rig = QuotaRig(halted={B}).hold(A, 70_000)
    with pytest.raises(LaneFull):
        rig.accept((A, 5_000))
    with pytest.raises(BufferFull):
        rig.accept((A, 10_001))
    for lane in (B, OLD_B, X):
        with pytest.raises(LaneFull):
            rig.accept((lane, 10_001))
    assert rig.quotas.lanes_to_shorten([chunk(A, 5_000)]) == [A, None]
    assert rig.quotas.lanes_to_shorten([chunk(B, 5_000)]) == [B]
    assert rig.quotas.lanes_to_shorten([chunk(OLD_B, 9_000)]) == [OLD_B]
    rig.hold(Y, 1_000)
    assert rig.quotas.lanes_to_shorten([chunk(X, 5_000)]) == [X, Y]


LANES = [Lane(f"phc_{letter}", historical) for letter in "abxyz" for historical in (False, True)]


class QuotaMachine(RuleBasedStateMachine):
    """Requests, deliveries, halts and verified keys in any order, beside the
    rule as it is written down.
    """

    @initialize(configured=st.sets(st.sampled_from(["phc_a", "phc_b"])), verifiable=st.booleans())
    def begin(self, configured: set[str], verifiable: bool) -> None:
        """A buffer, and some known keys."""
        self.halted: set[Lane] = set()
        self.rig = QuotaRig(known=(), halted=self.halted, verifiable=verifiable)
        self.rig.known.configure(configured)
        self.configured = set(configured)
        self.verified = set[str]()
        self.verifiable = verifiable
        self.held: dict[Lane, list[Chunk]] = {lane: [] for lane in LANES}

    def is_known(self, lane: Lane) -> bool:
        """By the model."""
        return lane.api_key in self.configured or lane.api_key in self.verified

    def fits(self, costs: dict[Lane, int], *, empty: bool = False, hopeful: bool = False) -> bool:
        """Whether the rule allows it; in an empty buffer, and with lanes resumed and keys
        verified, if that is asked.
        """
        held = {
            lane: 0 if empty else sum(held_chunk.cost for held_chunk in chunks)
            for lane, chunks in self.held.items()
        }
        free = Fraction(LIMIT - sum(held.values()) - sum(costs.values()))
        unknown = Fraction(0)
        asked = False
        for lane, bytes_held in held.items():
            total = bytes_held + costs.get(lane, 0)
            if not self.is_known(lane):
                unknown = unknown + total
                asked = asked or lane in costs
            if lane in costs:
                alpha = Fraction(1) if lane.historical else Fraction(7)
                if lane in self.halted and bytes_held and not hopeful:
                    alpha = min(alpha, Fraction(1, 3))
                if total > alpha * free:
                    return False
        protects = bool(self.configured) or (self.verifiable and bool(self.verified))
        alpha = Fraction(1, 7) if protects else Fraction(7)
        return not asked or (hopeful and self.verifiable) or unknown <= alpha * free

    @rule(
        costs=st.dictionaries(
            st.sampled_from(LANES), st.integers(OVERHEAD, LIMIT), min_size=1, max_size=3
        )
    )
    def offer(self, costs: dict[Lane, int]) -> None:
        """A request is accepted exactly if the rule allows it, and never too large if it could be
        accepted at another time.
        """
        offered = [chunk(lane, cost) for lane, cost in costs.items()]
        try:
            self.rig.quotas.check(offered)
        except (LaneFull, BufferFull):
            assert not self.fits(costs)
            assert self.fits(costs, empty=True, hopeful=True)
            return
        except RequestTooLarge:
            assert not self.fits(costs, empty=True, hopeful=True)
            return
        assert self.fits(costs)
        try:
            self.rig.buffer.offer(offered)
        except BufferFull:
            raise AssertionError("the rule allowed more than the buffer holds") from None
        for new_chunk in offered:
            self.held[new_chunk.lane].append(new_chunk)

    @rule(lane=st.sampled_from(LANES))
    def deliver(self, lane: Lane) -> None:
        """The oldest chunk of a lane is gone."""
        if self.held[lane]:
            self.rig.buffer.queue(lane).popleft()
            self.rig.buffer.settle([self.held[lane].pop(0)], DropReason.OPERATOR)

    @rule(lane=st.sampled_from(LANES))
    def halt_or_resume(self, lane: Lane) -> None:
        """Delivery changes its mind."""
        self.halted ^= {lane}

    @rule(key=st.sampled_from(["phc_a", "phc_x", "phc_y"]))
    def verify(self, key: str) -> None:
        """The key check has an answer."""
        if self.verifiable:
            self.rig.known.verify(key)
            self.verified.add(key)

    @rule(keys=st.sets(st.sampled_from(["phc_a", "phc_b", "phc_z"])))
    def reload(self, keys: set[str]) -> None:
        """Other keys are configured."""
        self.rig.known.configure(keys)
        self.configured = set(keys)

    @invariant()
    def counts(self) -> None:
        """The pool counts exactly what lanes of unknown keys hold."""
        unknown = [
            chunks for lane, chunks in self.held.items() if chunks and not self.is_known(lane)
        ]
        assert self.rig.known.unknown.lanes == len(unknown)
        assert self.rig.known.unknown.bytes == sum(
            held_chunk.cost for chunks in unknown for held_chunk in chunks
        )
        assert self.rig.buffer.used <= LIMIT


TestQuotaMachine = QuotaMachine.TestCase
TestQuotaMachine.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


@given(lanes=st.lists(st.integers(OVERHEAD, LIMIT), min_size=1, max_size=30))
def test_a_new_known_lane_finds_room(
    lanes: list[int],
) -> None:
    """Whatever others took by the rule, a lane that holds nothing may have seven eighths of what
    is left.
    """
    rig = QuotaRig()
    for number, cost in enumerate(lanes):
        for lane in (A, X, OLD_B, Lane(f"phc_{number}")):
            try:
                rig.accept((lane, cost))
            except (BufferFull, LaneFull, RequestTooLarge):
                continue
    left = (LIMIT - rig.buffer.used) * 7 // 8
    assert rig.most(C) == (left if left >= OVERHEAD else OVERHEAD - 1)
