"""No account and no place takes the threads of probes from others, and what has ended leaves nothing behind."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.schedule.probes import HUNG_ACCOUNTS, SLOW_FOR_S, ThreadShares

ACCOUNTS, PLACES = ("a", "b", "c"), ("/x", "/y")
THREADS_MAX, SHARE_MAX = 8, 3

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "begin", "end", "hang", "slow", "forget"]),
        st.sampled_from(ACCOUNTS),
        st.sampled_from(PLACES),
    ),
    min_size=10,
    max_size=40,
)


@given(STEPS)
def test_whoever_probes_where_shares_are_bounded_and_counts_right(steps: list[tuple[str, str, str]]) -> None:
    """`threads` are those that run, by account and place, and whether each hangs."""
    shares = ThreadShares(THREADS_MAX, SHARE_MAX)
    threads: list[tuple[str, str, bool]] = []
    for now_s, (deed, account, place) in enumerate(steps):
        share = shares.of(account, place)
        mine = (account, place, False)
        match deed:
            case "begin" if shares.may_begin(share):
                shares.begin(share)
                threads.append(mine)
            case "hang" if mine in threads:
                shares.hang(share, f"{place}/t{now_s}")
                threads.remove(mine)
                threads.append((account, place, True))
            case "end" if threads:
                account, place, hung = threads.pop(0)
                shares.end(shares.of(account, place), hung=hung)
            case "slow":
                shares.note_slow(share, f"{place}/t", now_s)
            case "forget":
                shares.forget_slow(now_s)
            case _:
                pass
        check(shares, threads)
    while threads:
        account, place, hung = threads.pop()
        shares.end(shares.of(account, place), hung=hung)
    check(shares, threads)


def check(shares: ThreadShares, threads: list[tuple[str, str, bool]]) -> None:
    at, of = Counter(place for _, place, _ in threads), Counter((account, place) for account, place, _ in threads)
    assert shares.running == len(threads) <= THREADS_MAX
    assert max(of.values(), default=0) <= SHARE_MAX
    for place in PLACES:
        others = len(threads) - at[place]
        assert shares.is_full(place) == (at[place] > 0 and at[place] >= (THREADS_MAX - others) // 2)
        hanging = {account for account, where, hung in threads if hung and where == place}
        assert shares.is_hung(place) == (len(hanging) >= HUNG_ACCOUNTS or shares.is_full(place))
        for account in ACCOUNTS:
            share = shares.of(account, place)
            assert share.running == of[account, place]
            allowed = len(threads) < THREADS_MAX and not shares.is_full(place) and share.running < SHARE_MAX
            assert shares.may_begin(share) == allowed
            assert share.hanging == threads.count((account, place, True))


def test_a_place_leaves_half_of_the_threads_that_are_free_to_others() -> None:
    shares = ThreadShares(THREADS_MAX, THREADS_MAX)
    counts = []
    for place in ("/v", "/w", "/x", "/y", "/z"):
        share = shares.of("a", place)
        while shares.may_begin(share):
            shares.begin(share)
        counts.append(share.running)
    assert counts == [4, 2, 1, 1, 0]  # a place where nothing runs gets one, as long as there is any


def test_a_share_whose_tables_wait_for_one_thread_gets_no_other() -> None:
    shares = ThreadShares()
    share = shares.of("a", "/x")
    assert shares.may_begin(share)
    share.shared = True
    assert not shares.may_begin(share)


@pytest.mark.parametrize(("after_s", "slow"), [(SLOW_FOR_S - 1, True), (SLOW_FOR_S, False)])
def test_a_table_counts_as_slow_for_a_while_and_its_share_is_dropped_then(after_s: float, slow: bool) -> None:
    shares = ThreadShares()
    shares.note_slow(shares.of("a", "/x"), "/x/t", 100.0)
    assert shares.troubled
    shares.forget_slow(100.0 + after_s)
    assert (shares.troubled, shares.known("a", "/x") is not None) == (slow, slow)


def test_one_that_hangs_is_slow_until_it_is_seen_to_be_quick() -> None:
    shares = ThreadShares()
    share = shares.of("a", "/x")
    shares.begin(share)
    shares.hang(share, "/x/t")
    shares.forget_slow(1e12)
    assert shares.known("a", "/x") is share
    shares.end(share, hung=True)
    shares.forget_slow(1e12)
    assert shares.known("a", "/x") is share
    shares.note_slow(share, "/x/t", 0.0)
    shares.forget_slow(SLOW_FOR_S)
    assert shares.known("a", "/x") is None


def test_a_place_is_hung_as_long_as_anything_of_so_many_accounts_hangs_there() -> None:
    shares = ThreadShares()
    for account in ("a", "a", "b"):
        shares.begin(shares.of(account, "/x"))
        shares.hang(shares.of(account, "/x"), f"/x/{account}")
    hung = [shares.is_hung("/x")]
    for account in ("a", "a", "b"):
        shares.end(shares.of(account, "/x"), hung=True)
        hung.append(shares.is_hung("/x"))
    assert hung == [True, True, False, False]
