"""When a query that depends on the time is looked at again."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from iscp.core.sql.time_dependence import TIME_REFRESH_S, TimeDependence, exact_instant_s, finest, next_refresh_at_s

NOON_S = datetime(2026, 3, 10, 12, tzinfo=UTC).timestamp()


def test_one_by_the_date_is_due_when_the_day_of_utc_changes() -> None:
    midnight_s = datetime(2026, 3, 11, tzinfo=UTC).timestamp()
    for at_s in (NOON_S, midnight_s - 0.001):
        assert next_refresh_at_s(TimeDependence.DATE, at_s, at_s + 5, None) == midnight_s
    assert next_refresh_at_s(TimeDependence.DATE, midnight_s, midnight_s, 10.0) == midnight_s + 86_400


@pytest.mark.parametrize(("interval_s", "pause_s"), [(None, TIME_REFRESH_S), (10.0, 10.0), (3_600.0, TIME_REFRESH_S)])
def test_one_by_the_moment_is_due_after_a_pause_that_counts_from_its_end(
    interval_s: float | None, pause_s: float
) -> None:
    """A longer interval holds it back besides, as it does with all that is outstanding."""
    assert next_refresh_at_s(TimeDependence.MOMENT, NOON_S, NOON_S + 90, interval_s) == NOON_S + 90 + pause_s


def test_an_instant_is_written_and_read_as_it_is() -> None:
    instant_s = exact_instant_s(1_773_144_000.123_987)
    assert instant_s == 1_773_144_000.123
    assert round(instant_s * 1_000_000) == 1_773_144_000_123_000


def test_the_finest_dependence_counts() -> None:
    assert finest([None, TimeDependence.DATE]) is TimeDependence.DATE
    assert finest([TimeDependence.DATE, None, TimeDependence.MOMENT]) is TimeDependence.MOMENT
    assert finest([None]) is None
