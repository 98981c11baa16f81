"""Decide when failed work is tried again. The random number is passed in."""

from __future__ import annotations

from iscp.model.settings.config import BackoffConfig

JITTER = 0.25
"""The part of a wait by which it is shortened at random, so that what failed together does not come back together."""


def jittered_s(wait_s: float, draw: float) -> float:
    """Return `wait_s`, less up to a quarter of it; `draw` is uniform in [0, 1)."""
    return wait_s * (1.0 - JITTER * draw)


def quarantined(config: BackoffConfig, failures: int) -> bool:
    """Return whether a job that failed `failures` times in a row is tried only rarely from now on."""
    return failures >= config.quarantine_after


def doubled_s(config: BackoffConfig, failures: int, draw: float) -> float:
    """Return the wait after the `failures`-th failure in a row (from 1): base, doubled with each, up to the cap."""
    # 2**64 doublings of anything exceed every cap; the limit keeps the number a float.
    doublings = min(max(failures, 1) - 1, 64)
    return jittered_s(min(config.cap_s, config.base_s * 2.0**doublings), draw)


def delay_s(config: BackoffConfig, failures: int, draw: float) -> float:
    """Return the wait of `doubled_s`, or once the job is quarantined that of a quarantine."""
    if quarantined(config, failures):
        return jittered_s(config.quarantine_s, draw)
    return doubled_s(config, failures, draw)
