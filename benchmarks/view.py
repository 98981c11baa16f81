"""Refreshes of views against recomputations by Spark and DuckDB: `python -m benchmarks.view [--json] [--rows N] …`.

A fact table with a dimension beside it is changed by commits of 1,000 rows (updates, deletes and inserts). After each,
by turns, the view is refreshed by a runner as nodes have it, without a node around it, and Spark overwrites a table
with the same query's rows, as CREATE OR REPLACE TABLE … AS SELECT does, in the same JVM with the same settings, both
warm. DuckDB computes these rows from deltalake's dataset, and deltalake overwrites a third table.
`ratio_…` is the median of a refresh over that of Spark's overwriting, `ratio_duckdb_…` over that of DuckDB's; `cpu_s`
is this process's processor time of the refreshes. `growth` is how much longer a refresh of groups takes at 40 times the
rows of the smallest table.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import click
import duckdb
import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.progress import report_progress
from iscp.consumers.view.view_kind import ViewKind
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.engine.iteration_ports import IterationPorts, SinkPool
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.schedule.runner import Runner
from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.spark.spark_engine import SparkEngine
from iscp.system.threads import SystemClock
from tests.fakes.guards import OpenGuard, ScriptedFailpoints

ROWS, GROUPS, CHANGED, FILES = 5_000_000, 100_000, 1_000, 8
GROWTH_ROWS = (500_000, 20_000_000)
FEED = {"delta.enableChangeDataFeed": "true"}

DUCKDB_AIMS = {"window": 0.3}
DUCKDB_AIM = 0.2
"""The ratio to DuckDB's recomputation that is aimed at, of all cases without one of their own."""

CASES = {
    "aggregate": ("SELECT g, count(*) AS n, count(x) AS k, sum(x) AS s, avg(x) AS m FROM fact GROUP BY g", 0.03),
    "touched": ("SELECT g, min(x) AS lo, max(x) AS hi, count(DISTINCT c) AS k FROM fact GROUP BY g", 0.3),
    "join": ("SELECT f.id, f.x, d.name FROM fact f JOIN dim d ON f.g = d.g", 0.15),
    "outer": ("SELECT f.id, f.x, d.name FROM fact f LEFT JOIN dim d ON f.g = d.g", 0.3),
    "window": ("SELECT id, g, x, row_number() OVER (PARTITION BY g ORDER BY x, id) AS r FROM fact", 0.3),
}


def fact_rows(ids: np.ndarray, salt: int) -> pa.Table:
    draw = np.random.default_rng(salt)
    size = len(ids)
    return pa.table(
        {
            "id": ids,
            "g": draw.integers(0, GROUPS, size),
            "x": draw.integers(0, 1_000_000, size),
            "c": draw.integers(0, 50, size),
        }
    )


def make_lake(root: Path, rows: int) -> dict[str, str]:
    """A fact table of so many rows, and a dimension of its groups, a tenth of which lack a row."""
    uris = {"fact": str(root / "fact"), "dim": str(root / "dim")}
    for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
        write_deltalake(uris["fact"], fact_rows(part, number), mode="append", configuration=FEED)
    groups = np.arange(0, GROUPS, dtype=np.int64)
    groups = groups[groups % 10 > 0]
    write_deltalake(
        uris["dim"], pa.table({"g": groups, "name": [f"group {each}" for each in groups]}), configuration=FEED
    )
    return uris


def change_fact(uri: str, rows: int, number: int) -> None:
    """One commit of 1,000 rows: half updates, a quarter deletes, a quarter inserts."""
    draw = np.random.default_rng(10_000 + number)
    touched = draw.choice(rows, CHANGED * 3 // 4, replace=False)
    fresh = np.arange(rows + number * CHANGED, rows + number * CHANGED + CHANGED // 4)
    ops = ["d"] * (CHANGED // 4) + ["u"] * (CHANGED * 3 // 4)
    changes = fact_rows(np.concatenate([touched, fresh]), 20_000 + number).append_column("op", [ops])
    columns = {name: f"s.{name}" for name in ("id", "g", "x", "c")}
    (
        DeltaTable(uri)
        .merge(changes, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_delete("s.op = 'd'")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, predicate="s.op <> 'd'")
        .execute()
    )
    os.sync()  # merging has written the table's files, and what is measured next would wait for the disk with them


@dataclass
class View:
    """One view over a lake, refreshed as a node's runner does, and the same query recomputed by Spark.

    `names`: of the tables that the query reads; by default those whose names stand in it. `policy`: its `refresh`.
    `kind`: of all views of a node.
    """

    runtime: SparkRuntime
    root: Path
    uris: dict[str, str]
    sql: str
    names: Collection[str] = ()
    policy: str = "auto"
    kind: ViewKind = field(default_factory=ViewKind)

    def __post_init__(self) -> None:
        self.root.mkdir()
        failpoints, clock = ScriptedFailpoints(), SystemClock()
        root = self.runtime.root
        load_state = state_loader(root)
        source = DeltaChangeSource(by_spark=table_opener(root), load_state=load_state, list_files=file_lister(root))
        sinks = SinkPool(lambda uri: DeltaSink(uri, failpoints, load_state), lambda uri: uri, clock, failpoints, source)
        engine = SparkEngine(self.runtime.root, self.runtime.new_session)
        ports = IterationPorts(engine, source, lambda name: self.kind, sinks, clock, failpoints, lambda: 1)
        self._runner, self._numbers = Runner(ports, Bounds()), count(1)
        named = self.names or [name for name in self.uris if f" {name} " in f"{self.sql} "]
        tables = {name: self.uris[name] for name in named}
        options = {"sql": self.sql, "tables": tables, "refresh": self.policy}
        spec = ConsumerSpec("view", str(self.root / "view"), options=options)
        own = DeltaCatalog().describe(next(iter(tables.values())))
        self._row = JobRow(JobKey("a", own.table_id, "view"), "view-1", JobSpec(spec).to_json(), own.uri, own.uri)

    def refresh(self) -> tuple[float, str]:
        """Seconds, and the strategy."""
        took_s, outcome = self.bring_on()
        return took_s, outcome.strategy

    def bring_on(self) -> tuple[float, JobOutcome]:
        """Seconds, and what was done."""
        began_s = time.perf_counter()
        iteration = Iteration(next(self._numbers), self._row.key.table_id, self._row.table_uri, (self._row,))
        (outcome,) = self._runner.run(iteration, OpenGuard())
        took_s = time.perf_counter() - began_s
        if not outcome.ok:
            raise RuntimeError(outcome.error_msg)
        return took_s, outcome

    def recompute(self) -> float:
        """Seconds."""
        session = self.runtime.new_session()
        for name, uri in self.uris.items():
            session.read.format("delta").load(uri).createOrReplaceTempView(name)
        began_s = time.perf_counter()
        rows = session.sql(self.sql).write.format("delta").mode("overwrite")
        rows.option("overwriteSchema", "true").save(str(self.root / "full"))
        return time.perf_counter() - began_s

    def recompute_by_duckdb(self) -> float:
        """Seconds."""
        began_s = time.perf_counter()
        with duckdb.connect() as database:
            for name, uri in self.uris.items():
                database.register(name, DeltaTable(uri).to_pyarrow_dataset())
            rows = database.sql(self.sql).to_arrow_table()
        huge = [each.name for each in rows.schema if pa.types.is_decimal(each.type)]  # sums of 128 bits
        for name in huge:
            rows = rows.set_column(rows.schema.get_field_index(name), name, rows[name].cast(pa.int64()))
        write_deltalake(str(self.root / "duckdb"), rows, mode="overwrite")
        return time.perf_counter() - began_s


def measure(view: View, rows: int, rounds: int, numbers: Any) -> dict[str, Any]:
    """The first round warms both."""
    view.refresh()
    ours: list[float] = []
    theirs: list[float] = []
    ducks: list[float] = []
    cpu_s: list[float] = []
    strategies: list[str] = []
    for number in range(rounds + 1):
        change_fact(view.uris["fact"], rows, next(numbers))
        if number % 2:
            theirs.append(view.recompute())
            ducks.append(view.recompute_by_duckdb())
        began_s = time.process_time()
        took_s, strategy = view.refresh()
        cpu_s.append(time.process_time() - began_s)
        if not number % 2:
            ducks.append(view.recompute_by_duckdb())
            theirs.append(view.recompute())
        ours.append(took_s)
        strategies.append(strategy)
        report_progress("a change", round=number, refresh_s=round(took_s, 3), recompute_s=round(theirs[-1], 3))
    return {
        "refresh_s": [round(each, 3) for each in ours[1:]],
        "recompute_s": [round(each, 3) for each in theirs[1:]],
        "duckdb_s": [round(each, 3) for each in ducks[1:]],
        "cpu_s": [round(each, 3) for each in cpu_s[1:]],
        "ratio": round(statistics.median(ours[1:]) / statistics.median(theirs[1:]), 4),
        "ratio_duckdb": round(statistics.median(ours[1:]) / statistics.median(ducks[1:]), 4),
        "strategies": sorted(set(strategies)),
    }


def run(root: Path, rows: int, rounds: int, names: Sequence[str], growth_rows: Sequence[int]) -> dict[str, Any]:
    runtime = SparkRuntime.start(SparkSettings(work_dir=root / "spark"))
    try:
        found: dict[str, Any] = {"rows": rows, "aims": []}
        uris, numbers = make_lake(root / "lake", rows), count(1)
        for name in names:
            sql, aim = CASES[name]
            figures = measure(View(runtime, root / name, uris, sql), rows, rounds, numbers)
            found |= {f"ratio_{name}": figures["ratio"], f"ratio_duckdb_{name}": figures["ratio_duckdb"]}
            found[name] = figures
            report_progress(name, **figures)
            aims = {"ratio": aim, "ratio_duckdb": DUCKDB_AIMS.get(name, DUCKDB_AIM)}
            found["aims"] += [
                {"aim": f"{each}_{name} <= {most}", "measured": figures[each], "met": figures[each] <= most}
                for each, most in aims.items()
            ]
        if growth_rows:
            found |= measure_growth(runtime, root, rounds, growth_rows, found)
        return found
    finally:
        runtime.stop()


def measure_growth(
    runtime: SparkRuntime, root: Path, rounds: int, sizes: Sequence[int], found: dict[str, Any]
) -> dict[str, Any]:
    medians = []
    for size in sizes:
        uris, numbers = make_lake(root / f"lake-{size}", size), count(1)
        view = View(runtime, root / f"growth-{size}", uris, CASES["aggregate"][0])
        view.refresh()
        times = []
        for _ in range(rounds + 1):
            change_fact(uris["fact"], size, next(numbers))
            times.append(view.refresh()[0])
        medians.append(statistics.median(times[1:]))
        report_progress("groups of a table", rows=size, refresh_s=round(medians[-1], 3))
    growth = round(medians[1] / medians[0], 3)
    found["aims"].append({"aim": "growth <= 1.5", "measured": growth, "met": growth <= 1.5})
    return {
        "growth": growth,
        "growth_s": dict(zip(map(str, sizes), [round(each, 3) for each in medians], strict=True)),
    }


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--rows", default=ROWS, show_default=True, help="Rows of the fact table.")
@click.option("--rounds", default=5, show_default=True, help="Changes that are measured of each view.")
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), help="Only these; by default all.")
@click.option("--growth/--no-growth", default=True, show_default=True, help="Measure tables of two sizes besides.")
@click.option("--growth-rows", nargs=2, type=click.IntRange(min=CHANGED), default=GROWTH_ROWS, show_default=True)
def main(
    as_json: bool, rows: int, rounds: int, names: tuple[str, ...], growth: bool, growth_rows: tuple[int, int]
) -> None:
    with tempfile.TemporaryDirectory(prefix="iscp-view-") as root:
        found = run(Path(root), rows, rounds, names or tuple(CASES), growth_rows if growth else ())
    if as_json:
        click.echo(json.dumps(found))
        return
    for name in (each for each in found if each.startswith(("ratio_", "growth"))):
        click.echo(f"{name}: {found[name]}")


if __name__ == "__main__":
    main()
