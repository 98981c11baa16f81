"""What the pool lends is exclusive until it is returned, and is then lent again."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from itertools import count

from iscp.changefeed.client.lock_wait import IDLE_MAX, Pool


def test_one_is_lent_again_when_it_is_back() -> None:
    numbers = count()
    kept = Pool(lambda: next(numbers))
    with kept.lend() as one, kept.lend() as other:
        assert (one, other) == (0, 1)
    with kept.lend() as again:
        assert again == 0, "the one that came back last"


def test_one_in_whose_use_something_failed_is_let_go() -> None:
    numbers = count()
    kept = Pool(lambda: next(numbers))
    with suppress(ValueError), kept.lend():
        raise ValueError
    with kept.lend() as another:
        assert another == 1


def test_no_more_are_kept_than_so_many() -> None:
    numbers = count()
    kept = Pool(lambda: next(numbers))
    with ExitStack() as stack:
        for _ in range(IDLE_MAX + 3):
            stack.enter_context(kept.lend())
    with ExitStack() as stack:
        lent = [stack.enter_context(kept.lend()) for _ in range(IDLE_MAX + 1)]
    assert lent[-1] == IDLE_MAX + 3
