"""The jobs of the demo, and what each must come to.

Compute what a target must hold from the source table alone, and how far behind it was.

No function here uses code that derives targets: the check shows whether that code is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp.cli.demo.lake import KEY, MEANING, WORDS, Sources, commit_times_s, embedder, read, version
from iscp.cli.demo.replay import Replayed
from iscp.client.admin_client import Client

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
