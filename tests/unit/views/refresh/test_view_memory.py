"""What is kept of groups is written again only where that has paid off, and what is taken once is no cost of later
refreshes."""

from __future__ import annotations

from iscp.core.query.refresh_choice import RefreshSample, Strategy
from iscp.views.changes.plan_leaves import BuildTimer
from iscp.views.refresh.view_memory import BUILDS_MAX, SERVED_LEAST, StoringWorth, ViewMemory


def test_it_is_written_again_once_it_has_served_often_enough_on_average() -> None:
    worth = StoringWorth()
    assert worth.write()
    worth.served += SERVED_LEAST - 1
    assert not worth.write()
    worth.served += 1
    assert worth.write()
    assert not worth.write(), "both of them have to have paid off"
    worth.served += SERVED_LEAST
    assert worth.write()


def test_a_refresh_is_remembered_without_the_time_that_plans_were_built_until_that_happens_too_often() -> None:
    memory, now_s = ViewMemory(), [0.0]
    timer = BuildTimer(lambda: now_s[0])
    for number in range(BUILDS_MAX + 2):
        built_s = memory.time_builds(timer)
        with timer.run():
            now_s[0] += 3.0
        memory.remember(RefreshSample(Strategy.INCREMENTAL, 1_000, 5.0), built_s())
        assert memory.samples[-1].took_s == (2.0 if number < BUILDS_MAX else 5.0)
