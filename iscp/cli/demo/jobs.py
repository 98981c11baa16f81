"""The jobs of the demo, and what each must come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iscp.cli.demo.check import differences, lags_s, percentile
from iscp.cli.demo.flights import KEY
from iscp.cli.demo.lake import Sources, commit_times_s, read, types, version
from iscp.cli.demo.replay import Replayed
from iscp.client.admin_client import Client

HISTORY_MAX = 10_000
FEED_SHARDS = 4


@dataclass(frozen=True, slots=True)
class DemoJob:
    """`recompute` makes the target's rows from the source's."""

    name: str
    source: str
    target: str
    recompute: Callable[[pa.Table], pa.Table]
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    where: str = ""
    consumer: str = "replica"
    options: Mapping[str, Any] = field(default_factory=dict)

    def register(self, client: Client) -> int:
        """The source's version just before."""
        since = version(self.source)
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


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a job did: `differences` are rows too many or missing in the target; lags are None if nothing was applied."""

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


def demo_jobs(sources: Sources, targets: str) -> tuple[DemoJob, ...]:
    """A full replica, one with columns and a filter that rows enter and leave, an append-only one, and a feed."""
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
    )


def verify(job: DemoJob, client: Client, since: int, replayed: Replayed | None = None) -> JobResult:
    """Compare the target with a recomputation, and look how the job did, with the lags of versions after `since`.

    Of a feed what counts is what its reader has `replayed`. The source must stand still meanwhile.
    """
    expected = job.recompute(read(job.source))
    if replayed is None:
        actual, wrong = read(job.target), _other_types(job, expected.column_names)
    else:
        odd = pc.not_equal(replayed.rows["_sign"], 1)  # what was taken too often; the year has no row twice
        actual, wrong = replayed.rows.drop_columns(["_sign"]), (pc.sum(odd).as_py() or 0) + (not replayed.in_order)
    try:
        wrong += sum(map(abs, differences(expected, actual)["_count"].to_pylist()))
    except ValueError:
        # Not even the columns are the same.
        wrong = max(1, expected.num_rows)
    history = client.history(job.source, job.name, limit=HISTORY_MAX)
    done = [(each.from_version, each.to_version, each.end_at_s) for each in history if each.error_code == 0]
    commits = {number: at_s for number, at_s in commit_times_s(job.source).items() if number > since}
    lags = lags_s(commits, done)
    return JobResult(
        name=job.name,
        source=job.source,
        target=job.target,
        version=version(job.source),
        rows=actual.num_rows,
        iterations=len(done),
        failed=len(history) - len(done),
        lag_p50_s=percentile(lags, 0.5),
        lag_p95_s=percentile(lags, 0.95),
        differences=wrong,
        equal=wrong == 0,
    )


def _other_types(job: DemoJob, names: Sequence[str]) -> int:
    """How many columns the target has of another type than the source."""
    source, target = types(job.source), types(job.target)
    return sum(target.get(name) != source[name] for name in names)
