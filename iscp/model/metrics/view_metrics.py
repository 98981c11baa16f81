"""Metrics of views: how they are refreshed, and why so. No refresh in full goes unnoticed."""

from __future__ import annotations

import re

from iscp.model.metrics.iteration_metrics import STRATEGY
from iscp.model.metrics.metric import Attribute, DeclaredMetric, recorded_counter

REASON = Attribute(
    "iscp.view.reason",
    "Why the strategy was taken: `first`, `policy`, `cost`, `small` (few rows of a simple view have changed), "
    "`unchanged`, `abandoned` (changes took as long as all rows do), or `forced` (the changes could not be used, "
    "which `job history` explains)",
)

REFRESHES = recorded_counter("iscp.view.refresh", "{refresh}", "Refreshes of views that succeeded", STRATEGY, REASON)

METRICS: tuple[DeclaredMetric, ...] = (REFRESHES,)

_REASONS = (
    ("first", re.compile("the first build")),
    ("policy", re.compile("the policy says so")),
    ("small", re.compile("few rows of a view")),
    ("abandoned", re.compile(r"changes took .* and were given up")),
    ("cost", re.compile(r"[\d.]+% of the bytes have changed|expected .* by changes|changes need [\d.]+ times")),
)


def reason_class(strategy: str, reason: str) -> str:
    """Return the class of a reason that a refresh gives in words, of which there are as many as refreshes."""
    if strategy == "unchanged":
        return strategy
    return next((name for name, form in _REASONS if form.match(reason)), "forced")
