"""Waits after failures double up to a cap, with jitter, and a quarantined job is tried rarely."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from iscp.model.settings.backoff import JITTER, delay_s, quarantined
from iscp.model.settings.config import BackoffConfig

CONFIG = BackoffConfig(base_s=5, cap_s=300, quarantine_after=10, quarantine_s=3_600)


def test_five_seconds_double_up_to_five_minutes_and_then_it_is_quarantined() -> None:
    waits = [delay_s(CONFIG, failures, draw=0.0) for failures in range(1, 12)]
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300, 3_600, 3_600]
    assert [quarantined(CONFIG, failures) for failures in (1, 9, 10, 11)] == [False, False, True, True]


@given(
    failures=st.integers(1, 10**9),
    draw=st.floats(0, 1, exclude_max=True),
    base_s=st.floats(1e-3, 1e3),
    factor=st.floats(1, 1e6),
)
def test_a_wait_is_never_nothing_and_never_beyond_the_cap(
    failures: int, draw: float, base_s: float, factor: float
) -> None:
    config = BackoffConfig(base_s=base_s, cap_s=base_s * factor, quarantine_after=2 * 10**9)
    wait_s = delay_s(config, failures, draw)
    assert base_s * (1 - JITTER) <= wait_s <= config.cap_s
