"""What is derived: fifteen views in three layers, two replicas and a change feed.

Each query is read by Spark and by DuckDB, and has no answer that the order of rows decides. A sum is of whole numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

FLIGHT = ("year", "month", "day", "carrier", "flight", "origin")
WEATHER = ("origin", "year", "month", "day", "hour")
TRIP = ("trip_id", "attempt")
SOURCE_KEYS = {"flights": FLIGHT, "weather": WEATHER, "airports": ("faa",), "trips": TRIP, "zones": ("zone",)}
"""The columns that identify a row of each source."""


class Kind(StrEnum):
    """What a derived table is."""

    VIEW = "view"
    REPLICA = "replica"
    FEED = "feed"


@dataclass(frozen=True, slots=True)
class Derived:
    """A derived table. `inputs` are the tables that `sql` names: sources, or what stands above in `MEDALLION`.

    The rest is for engines whose users have to say it: `key` identifies a row of the result. `part` is an expression
    over the result, and `parts` has one over each input: rows of the result have to be computed again only where their
    part is one of a changed row. A change of an input that `parts` leaves out concerns all rows. `row_wise`: each row
    of the one input gives at most one row, with the same key.
    """

    name: str
    layer: str
    sql: str
    inputs: tuple[str, ...]
    key: tuple[str, ...]
    part: str = ""
    parts: Mapping[str, str] = field(default_factory=dict)
    row_wise: bool = False
    kind: Kind = Kind.VIEW


_DAY = "month * 100 + day"

MEDALLION = (
    Derived("flights_copy", "replica", "SELECT * FROM flights", ("flights",), FLIGHT, row_wise=True, kind=Kind.REPLICA),
    Derived("trips_copy", "replica", "SELECT * FROM trips", ("trips",), TRIP, row_wise=True, kind=Kind.REPLICA),
    Derived("trips_feed", "feed", "SELECT * FROM trips", ("trips",), TRIP, kind=Kind.FEED),
    Derived(
        "flights_clean",
        "bronze",
        """SELECT year, month, day, hour, carrier, flight, origin, dest, tailnum, dep_delay, arr_delay, air_time,
        distance FROM flights WHERE tailnum IS NOT NULL AND distance > 0""",
        ("flights",),
        FLIGHT,
        row_wise=True,
    ),
    Derived(
        "weather_clean",
        "bronze",
        """SELECT origin, year, month, day, hour, temp, wind_speed, visib,
        CASE WHEN precip > 0 THEN 1 ELSE 0 END AS rainy FROM weather WHERE visib IS NOT NULL""",
        ("weather",),
        WEATHER,
        row_wise=True,
    ),
    Derived(
        "trips_clean",
        "bronze",
        """SELECT trip_id, attempt, vendor, month, day, hour, pickup_zone, dropoff_zone, distance_m, fare_cents,
        tip_cents FROM trips WHERE distance_m > 0 AND fare_cents >= 0""",
        ("trips",),
        TRIP,
        row_wise=True,
    ),
    Derived(
        "flights_named",
        "silver",
        """SELECT f.year, f.month, f.day, f.carrier, f.flight, f.origin, f.dest, a.name AS dest_name, f.arr_delay
        FROM flights_clean f LEFT JOIN airports a ON f.dest = a.faa""",
        ("flights_clean", "airports"),
        FLIGHT,
        _DAY,
        {"flights_clean": _DAY},
    ),
    Derived(
        "flights_weather",
        "silver",
        """SELECT f.year, f.month, f.day, f.hour, f.carrier, f.flight, f.origin, f.dep_delay, w.rainy, w.wind_speed
        FROM flights_clean f JOIN weather_clean w
        ON f.origin = w.origin AND f.year = w.year AND f.month = w.month AND f.day = w.day AND f.hour = w.hour""",
        ("flights_clean", "weather_clean"),
        FLIGHT,
        _DAY,
        {"flights_clean": _DAY, "weather_clean": _DAY},
    ),
    Derived(
        "flights_before",
        "silver",
        """SELECT year, month, day, carrier, flight, origin, tailnum, arr_delay,
        lag(arr_delay) OVER (PARTITION BY tailnum ORDER BY year, month, day, hour, carrier, flight, origin)
        AS delay_before FROM flights_clean""",
        ("flights_clean",),
        FLIGHT,
        "tailnum",
        {"flights_clean": "tailnum"},
    ),
    Derived(
        "trips_once",
        "silver",
        """SELECT trip_id, attempt, vendor, month, day, hour, pickup_zone, dropoff_zone, distance_m, fare_cents,
        tip_cents FROM
        (SELECT *, row_number() OVER (PARTITION BY trip_id ORDER BY attempt DESC) AS place FROM trips_clean) t
        WHERE place = 1""",
        ("trips_clean",),
        ("trip_id",),
        "trip_id",
        {"trips_clean": "trip_id"},
    ),
    Derived(
        "trips_zoned",
        "silver",
        """SELECT t.trip_id, t.month, t.day, p.name AS pickup, p.borough AS borough, d.name AS dropoff, t.fare_cents
        FROM trips_once t JOIN zones p ON t.pickup_zone = p.zone JOIN zones d ON t.dropoff_zone = d.zone""",
        ("trips_once", "zones"),
        ("trip_id",),
        "trip_id",
        {"trips_once": "trip_id"},
    ),
    Derived(
        "trips_shares",
        "silver",
        """SELECT trip_id, pickup_zone, month, day, fare_cents,
        sum(fare_cents) OVER (PARTITION BY pickup_zone, month, day) AS zone_day_cents
        FROM trips_once""",
        ("trips_once",),
        ("trip_id",),
        "pickup_zone",
        {"trips_once": "pickup_zone"},
    ),
    Derived(
        "carrier_delays",
        "gold",
        """SELECT carrier, month, count(*) AS flights, count(arr_delay) AS arrived, sum(arr_delay) AS delay,
        avg(arr_delay) AS delay_avg FROM flights_clean GROUP BY carrier, month""",
        ("flights_clean",),
        ("carrier", "month"),
        "carrier",
        {"flights_clean": "carrier"},
    ),
    Derived(
        "busiest_routes",
        "gold",
        """SELECT origin, dest, dest_name, count(*) AS flights FROM flights_named
        GROUP BY origin, dest, dest_name ORDER BY flights DESC, origin, dest, dest_name LIMIT 20""",
        ("flights_named",),
        ("origin", "dest"),
    ),
    Derived(
        "rain_delays",
        "gold",
        """SELECT origin, rainy, count(*) AS flights, avg(dep_delay) AS delay_avg
        FROM flights_weather GROUP BY origin, rainy""",
        ("flights_weather",),
        ("origin", "rainy"),
        "origin",
        {"flights_weather": "origin"},
    ),
    Derived(
        "carrier_fleets",
        "gold",
        """SELECT carrier, count(DISTINCT tailnum) AS aircraft, count(DISTINCT dest) AS airports
        FROM flights_clean GROUP BY carrier""",
        ("flights_clean",),
        ("carrier",),
        "carrier",
        {"flights_clean": "carrier"},
    ),
    Derived(
        "zone_revenue",
        "gold",
        """SELECT z.zone, z.name, t.trips, t.cents FROM zones z LEFT JOIN
        (SELECT pickup_zone, count(*) AS trips, sum(fare_cents + tip_cents) AS cents FROM trips_once
        GROUP BY pickup_zone) t ON z.zone = t.pickup_zone""",
        ("trips_once", "zones"),
        ("zone",),
        "zone",
        {"trips_once": "pickup_zone", "zones": "zone"},
    ),
    Derived(
        "day_totals",
        "gold",
        """SELECT coalesce(f.month, t.month) AS month, coalesce(f.day, t.day) AS day, f.flights, t.trips, t.cents
        FROM (SELECT month, day, count(*) AS flights FROM flights_clean GROUP BY month, day) f FULL JOIN
        (SELECT month, day, count(*) AS trips, sum(fare_cents) AS cents FROM trips_once GROUP BY month, day) t
        ON f.month = t.month AND f.day = t.day""",
        ("flights_clean", "trips_once"),
        ("month", "day"),
        _DAY,
        {"flights_clean": _DAY, "trips_once": _DAY},
    ),
)
"""Everything that is derived, each after what it reads."""

FEW = ("trips_copy", "trips_feed", "trips_clean", "trips_once", "zone_revenue")
"""The names of a small part of it, in which each has its inputs."""


def chosen(names: Collection[str]) -> tuple[Derived, ...]:
    """Return these derived tables, or all if there is no name. Raises ValueError where one lacks an input."""
    found = tuple(each for each in MEDALLION if not names or each.name in names)
    there = {*SOURCE_KEYS, *(each.name for each in found)}
    lacking = sorted({table for each in found for table in each.inputs} - there)
    if lacking or len(found) < len(names):
        raise ValueError(f"not chosen, or not there: {lacking or sorted(set(names) - there)}")
    return found


def below(changed: Iterable[str], derived: Iterable[Derived]) -> list[Derived]:
    """Return what reads these tables, by whatever way, each after what it reads."""
    reached, found = set(changed), list[Derived]()
    for each in derived:
        if reached.intersection(each.inputs):
            reached.add(each.name)
            found.append(each)
    return found
