"""The time up to which all that came in has been processed, whatever the order of processing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iscp.runtime.owner.unread import Unread
from tests.fakes.clock import FakeClock


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0.0, 2.0)), max_size=50))
def test_all_before_the_oldest_that_is_unread_has_been_read(steps: list[tuple[bool, int, float]]) -> None:
    clock = FakeClock()
    unread, model = Unread(clock), list[float]()
    for comes, which, later_s in steps:
        clock.advance(later_s)
        if comes:
            model.append(unread.note())
        elif model:
            unread.mark_read(model.pop(min(which, len(model) - 1)))
        assert unread.since_s() == min(model, default=clock.monotonic_s())
