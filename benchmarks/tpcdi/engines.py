"""The engines that bring the warehouse up to date, each within its own process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake

from benchmarks.tpcdi.warehouse import VIEWS, below
from iscp.app.local_engine import LocalEngine
from iscp.lake.local_lake import Lake
from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.run.run_plan import RunPlan
from iscp.ports.engine import IterationRunner
from iscp.ports.system import Guard
from iscp.spark.session import SparkRuntime, SparkSettings
from iscp.standalone.local_run import LocalRun, RequestedJob, RunListener, RunOrders, UnitRunner


@dataclass(frozen=True, slots=True)
class Brought:
    """One view, brought up to date. A recomputation reads no fewer rows than there are, which nobody counts."""

    name: str
    seconds: float
    strategy: str = "full"
    reason: str = ""
    rows_read: int = 0
    rows: int = 0
    spark: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Engine(ABC):
    """It is ready when it has been made. `folder` has its targets, `sources` are the places of the sources."""

    def __init__(self, folder: Path, sources: Mapping[str, str]) -> None:
        self.folder, self.sources = folder, sources

    def uri(self, name: str) -> str:
        return self.sources.get(name) or str(self.folder / name)

    @abstractmethod
    def bring_on(self, changed: Sequence[str]) -> list[Brought]:
        """Bring on all views below the changed sources. Raises RuntimeError."""

    @abstractmethod
    def stop(self) -> None: ...


class SparkEngine(Engine):
    """Spark recomputes each view and overwrites its table, in one session that stays, with the settings of a node."""

    def __init__(self, folder: Path, sources: Mapping[str, str]) -> None:
        super().__init__(folder, sources)
        self._spark = SparkRuntime.start(SparkSettings(work_dir=folder.parent / "spark-work"))

    def bring_on(self, changed: Sequence[str]) -> list[Brought]:
        found = []
        for each in below(changed):
            began_s = time.perf_counter()
            tables = ", ".join(f"{name} AS (SELECT * FROM delta.`{self.uri(name)}`)" for name in each.inputs)
            rows = self._spark.root.sql(_within(tables, each.sql))
            rows.write.format("delta").mode("overwrite").save(self.uri(each.name))
            found.append(Brought(each.name, time.perf_counter() - began_s))
        return found

    def stop(self) -> None:
        self._spark.stop()


class DuckdbEngine(Engine):
    """DuckDB recomputes each view, and deltalake overwrites its table. What reads a new result has it from memory."""

    def bring_on(self, changed: Sequence[str]) -> list[Brought]:
        results: dict[str, pa.Table] = {}
        found = []
        for each in below(changed):
            began_s = time.perf_counter()
            with duckdb.connect() as database:
                database.execute("SET TimeZone = 'UTC'")
                for name in each.inputs:
                    rows = results.get(name)
                    database.register(name, DeltaTable(self.uri(name)).to_pyarrow_dataset() if rows is None else rows)
                results[each.name] = _with_longs(database.sql(each.duckdb_sql))
            write_deltalake(self.uri(each.name), results[each.name], mode="overwrite")
            found.append(Brought(each.name, time.perf_counter() - began_s, rows=len(results[each.name])))
        return found

    def stop(self) -> None:
        """There is nothing that would go on."""


class IscpEngine(Engine):
    """`iscp.local` runs the file of all views, one view after the other as the others do."""

    def __init__(self, folder: Path, sources: Mapping[str, str]) -> None:
        super().__init__(folder, sources)
        self._counting = CountingEngine()
        self._lake = Lake(self._counting)
        self._file = folder.parent / "views.yaml"
        self._file.write_text(yaml.safe_dump([self._job(place) for place in range(len(VIEWS))]))

    def bring_on(self, changed: Sequence[str]) -> list[Brought]:
        self._counting.outcomes.clear()
        results = self._lake.run(self._file, parallel=1)
        if wrong := [str(each) for each in results if not each.ok]:
            raise RuntimeError("; ".join(wrong))
        read = {each.row.key.job_name: each.rows_in for each in self._counting.outcomes}
        return [
            Brought(each.name, each.seconds, each.strategy, each.reason, read[each.name], each.rows, each.spark or "")
            for each in results
            if each.iterations
        ]

    def stop(self) -> None:
        self._lake.close()

    def _job(self, place: int) -> dict[str, object]:
        view = VIEWS[place]
        tables = {name: self.uri(name) for name in view.inputs}
        options = {"sql": view.sql, "tables": tables}
        table, target = tables[view.inputs[0]], self.uri(view.name)
        return {"table": table, "name": view.name, "consumer": "view", "target": target, "options": options}


class CountingEngine(LocalEngine):
    """A local engine that keeps what comes of iterations: a run's results do not say how many rows were read."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[JobOutcome] = []

    def run(
        self, jobs: Sequence[RequestedJob], plan: RunPlan, orders: RunOrders, listener: RunListener, parallel: int
    ) -> LocalRun:
        runner = CountingRunner(self._runner(), self.outcomes)
        units = UnitRunner(lambda: runner, self._source, self._clock, self._kinds)
        return LocalRun(self._registrar, units, jobs, plan, orders, listener, parallel)


class CountingRunner:
    """Port IterationRunner, around another one."""

    def __init__(self, runner: IterationRunner, outcomes: list[JobOutcome]) -> None:
        self._runner, self._outcomes = runner, outcomes

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        found = self._runner.run(iteration, guard)
        self._outcomes += found
        return found

    def cancel(self, iteration: Iteration) -> None:
        self._runner.cancel(iteration)


ENGINES: Mapping[str, type[Engine]] = {"iscp": IscpEngine, "spark": SparkEngine, "duckdb": DuckdbEngine}


def _within(tables: str, sql: str) -> str:
    """The query with tables by their names, before those that it names itself."""
    return f"WITH {tables}, {sql.removeprefix('WITH ')}" if sql.startswith("WITH ") else f"WITH {tables} {sql}"


def _with_longs(result: duckdb.DuckDBPyRelation) -> pa.Table:
    """The rows; sums of whole numbers as Delta has them, and not in 128 bits."""
    columns = (
        f'"{name}"::BIGINT AS "{name}"' if kind == "HUGEINT" else f'"{name}"'
        for name, kind in zip(result.columns, map(str, result.types), strict=True)
    )
    return pa.table(result.project(", ".join(columns)).to_arrow_table())
