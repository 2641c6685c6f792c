"""The accounts: five figures a lane that must agree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwarder.core.event import Lane
from forwarder.core.ports import DropReason, Reason
from forwarder.telemetry.books import MAX_ACCOUNTS, Account, Accounts, Books

LANE = Lane("phc_booksbooks123456")
OTHER = Lane("phc_booksbooks123456", historical=True)


def test_every_verb_has_its_figure() -> None:
    """What came in is by source, what was buried and dropped by reason; the rest is buffered."""
    books = Books()
    books.receive(LANE, "http", 10)
    books.receive(LANE, "import", 5)
    books.deliver(LANE, 7)
    books.dead_letter(LANE, Reason.REFUSED, 2)
    books.dead_letter(LANE, Reason.TOO_LARGE, 1)
    books.drop(LANE, DropReason.INVALID_OVERFLOW, 3)
    account = books.accounts[LANE]
    assert dict(account.received) == {"http": 10, "import": 5}
    assert (account.delivered, account.buffered) == (7, 2)
    assert dict(account.dead_lettered) == {Reason.REFUSED: 2, Reason.TOO_LARGE: 1}
    assert dict(account.dropped) == {DropReason.INVALID_OVERFLOW: 3}


def test_accounts_continue_where_they_ended() -> None:
    """Figures of before a start are added, those of lanes without an account of their own too."""
    books = Books()
    books.receive(LANE, "http", 1)
    books.open(
        {
            LANE: Account.of({"http": 9}, {DropReason.DAMAGED: 1}, delivered=6),
            None: Account.of({"kafka": 2}, {}, dead_lettered={Reason.UNDECODABLE: 2}),
        },
        Account.of({"http": 4}, {}, delivered=4),
    )
    books.open({LANE: Account.of({}, {}, dead_lettered={Reason.REFUSED: 1})})
    assert books.accounts == {
        LANE: Account.of(
            {"http": 10}, {DropReason.DAMAGED: 1}, delivered=6, dead_lettered={Reason.REFUSED: 1}
        ),
        None: Account.of({"kafka": 2}, {}, dead_lettered={Reason.UNDECODABLE: 2}),
    }
    assert books.accounts.others == Account.of({"http": 4}, {}, delivered=4)


def test_lanes_have_accounts_of_their_own() -> None:
    """Live and historical events of a key apart, and those without a lane."""
    books = Books()
    for number, lane in enumerate((LANE, OTHER, None), 1):
        books.receive(lane, "http", number)
    assert {lane: account.buffered for lane, account in books.accounts.items()} == {
        LANE: 1,
        OTHER: 2,
        None: 3,
    }


def test_a_fresh_account_balances() -> None:
    """Nothing came, nothing is missing."""
    assert Account().buffered == 0


steps = st.lists(
    st.tuples(
        st.sampled_from(["receive", "deliver", "bury", "drop"]),
        st.sampled_from([LANE, OTHER]),
        st.integers(1, 1000),
    )
)


@given(steps)
def test_buffered_is_what_the_other_figures_leave(verbs: list[tuple[str, Lane, int]]) -> None:
    """Whatever happens in whatever order, per lane."""
    books = Books()
    expected = {LANE: 0, OTHER: 0}
    for verb, lane, count in verbs:
        if verb == "receive":
            books.receive(lane, "http", count)
        elif verb == "deliver":
            books.deliver(lane, count)
        elif verb == "bury":
            books.dead_letter(lane, Reason.REFUSED, count)
        else:
            books.drop(lane, DropReason.INVALID_OVERFLOW, count)
        expected[lane] += count if verb == "receive" else -count
    assert {lane: books.accounts[lane].buffered for lane in expected} == expected


def test_idle_accounts_are_put_together() -> None:
    """However many keys come by, the accounts are bounded, those with something buffered stay, and
    no figure is lost.
    """
    accounts = Accounts(limit=10)
    for number in range(100):
        account = accounts[Lane(f"phc_{number}")]
        account.received["http"] += 2
        account.delivered += 1
        account.dead_lettered[Reason.REFUSED] += 0 if number < 5 else 1
    everything = [accounts.others, *accounts.values()]
    assert len(accounts) <= 10
    assert {Lane(f"phc_{number}") for number in range(5)} <= accounts.keys()
    assert accounts.others.buffered == 0
    assert sum(account.received["http"] for account in everything) == 200
    assert sum(account.delivered for account in everything) == 100
    assert sum(account.dead_lettered[Reason.REFUSED] for account in everything) == 95


def test_made_up_keys_grow_nothing() -> None:
    """However many lanes there were, accounts are bounded, no event goes uncounted, and a lane
    with something buffered keeps its own.
    """
    books = Books()
    books.receive(LANE, "http", 5)
    for number in range(3 * MAX_ACCOUNTS):
        lane = Lane(f"phc_madeup{number}")
        books.receive(lane, "http", 2)
        books.dead_letter(lane, Reason.MISSING_EVENT, 1)
        books.drop(lane, DropReason.INVALID_OVERFLOW, 1)
    accounts = [*books.accounts.values(), books.accounts.others]
    assert len(accounts) <= MAX_ACCOUNTS + 1
    assert books.accounts[LANE].buffered == 5
    assert sum(sum(account.received.values()) for account in accounts) == 5 + 6 * MAX_ACCOUNTS
    assert sum(account.buffered for account in accounts) == 5
    assert (
        books.accounts.others.dead_lettered[Reason.MISSING_EVENT]
        == books.accounts.others.dropped[DropReason.INVALID_OVERFLOW]
        > 0
    )


def test_dead_letters_leave_by_three_doors() -> None:
    """Replayed they are buffered again, dropped by hand they are counted as that, and one that was
    counted twice is counted once.
    """
    books = Books()
    books.receive(LANE, "http", 4)
    books.dead_letter(LANE, Reason.REFUSED, 4)
    books.restore(LANE, Reason.REFUSED, 1)
    books.discard(LANE, Reason.REFUSED, 2)
    account = books.accounts[LANE]
    assert (account.buffered, account.dead_lettered, account.dropped) == (
        1,
        {Reason.REFUSED: 1},
        {DropReason.OPERATOR: 2},
    )
    books.dead_letter(LANE, Reason.REFUSED, 1)
    books.uncount_dead_letter(LANE, Reason.REFUSED, 1)
    assert (account.buffered, account.dead_lettered) == (1, {Reason.REFUSED: 1})
