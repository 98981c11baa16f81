"""The ways in which rows of a query depend on the time, and when such a query is refreshed though no table has
changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import floor, inf

TIME_REFRESH_S = 60.0
"""How long the rows of a query that goes by the time of day stay as they are while no table changes; a view with a
shorter interval is refreshed at that."""

_DAY_S = 86_400.0


class TimeDependence(StrEnum):
    """A dependence on the time. DATE: rows change by the date alone, which is that of UTC. MOMENT: they may change at
    any time.
    """

    DATE = "date"
    MOMENT = "moment"


def finest(found: Iterable[TimeDependence | None]) -> TimeDependence | None:
    """Return the dependence of several parts of a query together, or None if none of them depends on the time."""
    among = {*found}
    return next((each for each in (TimeDependence.MOMENT, TimeDependence.DATE) if each in among), None)


def exact_instant_s(now_s: float) -> float:
    """Return the instant at which a refresh takes its query: to the millisecond, as it is written and read again."""
    return floor(now_s * 1000) / 1000


def next_refresh_at_s(dependence: TimeDependence, as_of_s: float, now_s: float, interval_s: float | None) -> float:
    """Return when rows may be others than at `as_of_s`. `interval_s` is the view's interval, if it has one.

    The pause of MOMENT counts from `now_s`, the end of the refresh: one that takes long does not follow on itself.
    """
    if dependence is TimeDependence.DATE:
        return (floor(as_of_s / _DAY_S) + 1) * _DAY_S
    return now_s + min(TIME_REFRESH_S, interval_s or inf)
