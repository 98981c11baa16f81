"""How the rows of a query depend on the time, and when one that does is looked at again though no table has changed."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from math import floor, inf

TIME_REFRESH_S = 60.0
"""How long the rows of a query that goes by the time of day stay as they are while no table changes; a view with a
shorter interval is refreshed at that."""

_DAY_S = 86_400.0


class TimeDependence(StrEnum):
    """DATE: rows change by the date alone, which is that of UTC. MOMENT: they may change at any time."""

    DATE = "date"
    MOMENT = "moment"


def finest(found: Iterable[TimeDependence | None]) -> TimeDependence | None:
    """Of several parts of a query together; None: none of them depends on the time."""
    among = {*found}
    return next((each for each in (TimeDependence.MOMENT, TimeDependence.DATE) if each in among), None)


def exact_instant_s(now_s: float) -> float:
    """The instant at which a refresh takes its query: to the millisecond, as it is written and read again."""
    return floor(now_s * 1000) / 1000


def next_refresh_at_s(dependence: TimeDependence, as_of_s: float, now_s: float, interval_s: float | None) -> float:
    """When rows may be others than at `as_of_s`. `interval_s`: at which the view is refreshed, if it is by one.

    The pause of MOMENT counts from `now_s`, the end of the refresh: one that takes long does not follow on itself.
    """
    if dependence is TimeDependence.DATE:
        return (floor(as_of_s / _DAY_S) + 1) * _DAY_S
    return now_s + min(TIME_REFRESH_S, interval_s or inf)
