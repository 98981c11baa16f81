from __future__ import annotations

import time

from iscp.system.threads import SystemClock


def test_a_time_is_the_same_after_it_was_kept_in_microseconds() -> None:
    clock = SystemClock()
    for _ in range(1_000):
        now_s = clock.now_s()
        assert round(now_s * 1e6) / 1e6 == now_s


def test_the_time_is_the_machines() -> None:
    before_s, now_s, after_s = time.time(), SystemClock().now_s(), time.time()
    assert before_s - 2e-6 <= now_s <= after_s


def test_a_lease_runs_out_while_the_machine_is_suspended() -> None:
    """Its clock counts that time, where there is one that does: so read beside that."""
    steady = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    before_s, now_s, after_s = time.clock_gettime(steady), SystemClock().monotonic_s(), time.clock_gettime(steady)
    assert before_s <= now_s <= after_s
