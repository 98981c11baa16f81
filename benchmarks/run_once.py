"""Runs without a cluster, as whole processes: `python -m benchmarks.run_once [--runs N] [--json]`; see `--help`.

By turns in one run: `iscp run` where nothing has changed, and where 1,000 rows of each table have; the same replicas by
a script of PySpark that reads what has changed and merges it, from the start of its process to its end; five views
against `CREATE OR REPLACE TABLE … AS` of each by an application of Spark that runs already; and the first run of an
example. A run counts as one without a JVM if none was among its children at any look, twenty times a second.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
import numpy as np
import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake

from benchmarks.progress import report_progress
from benchmarks.replica_script import script_of
from iscp.delta.sink.bag_write import BagWriter

TABLES = 5
"""Source tables; each has two replicas and a view."""

CHANGED_ROWS = 1_000
"""Rows that are changed in each table before a run that has something to do."""

ROWS_MAX = 100_000_000
"""Rows of a table that are compared at the end."""

LOOK_S = 0.05
"""Seconds between two looks for a JVM among a run's children."""

PEAK_LOOK_S = 0.005
"""Seconds between two looks for the memory that a run has taken at most."""

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)

RUN_TIMEOUT_S = 900.0
"""Seconds that one process may take; then the benchmark fails."""

AIMS = {"idle_s": 1.0, "idle_mib": 150.0, "small_s": 3.0, "ratio_script": 0.15, "ratio_dbt": 0.3, "first_s": 20.0}


@dataclass(frozen=True, slots=True)
class Process:
    """How long a process took, its peak of resident memory in its last sample, and whether it had a JVM."""

    seconds: float
    mib: float
    jvm: bool


def run_process(command: Sequence[str]) -> Process:
    """Run a command to its end. Raises RuntimeError if it fails, or takes too long."""
    began_s = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        jvm, kib, next_s = False, 0, 0.0
        while child.poll() is None:
            if time.perf_counter() - began_s > RUN_TIMEOUT_S:
                child.kill()
                raise RuntimeError(f"{command} took more than {RUN_TIMEOUT_S} s")
            kib = max(kib, _peak_kib(child.pid))
            if time.perf_counter() > next_s:
                jvm, next_s = jvm or _has_jvm(child.pid), time.perf_counter() + LOOK_S
            time.sleep(PEAK_LOOK_S)
        seconds = time.perf_counter() - began_s
        if child.returncode != 0:
            said.seek(0)
            raise RuntimeError(f"{command} ended with {child.returncode}: {said.read()}")
    return Process(seconds, kib / 1024, jvm)


def _peak_kib(pid: int) -> int:
    """Return the peak of a process so far; 0: it has ended. (The kernel's count for who waits for a process begins with
    the peak of the process that has started it.)
    """
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def _has_jvm(pid: int) -> bool:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        others = [
            each for task in Path(f"/proc/{pid}/task").iterdir() for each in (task / "children").read_text().split()
        ]
        return any(Path(f"/proc/{each}/comm").read_text().strip() == "java" for each in {*children, *others})
    except OSError:  # one of them has just ended
        return False


class Lake:
    """Sources, and the files of jobs on them: replicas and views under `targets`."""

    def __init__(self, root: Path, rows: int) -> None:
        self.root = root
        self.rows = rows
        self._draw = np.random.default_rng(0)
        for number in range(TABLES):
            write_deltalake(self.source(number), self._rows(np.arange(rows)), configuration=_FEED)

    def source(self, number: int) -> str:
        return str(self.root / f"source{number}")

    def query(self, number: int) -> tuple[str, dict[str, str]]:
        """Return the query of the view of a table, and its tables: three by groups, two by joins."""
        if number < TABLES - 2:
            return "SELECT customer, count(*) AS orders, sum(total) AS total FROM t GROUP BY customer", {
                "t": self.source(number)
            }
        tables = {"t": self.source(number), "u": self.source(0)}
        return "SELECT t.id, t.total, u.total AS other FROM t JOIN u ON t.id = u.id WHERE t.total > 900000", tables

    def replicas(self, targets: Path) -> list[dict[str, object]]:
        """Return two replicas of each table: one of all, one of chosen columns and rows."""
        found: list[dict[str, object]] = []
        for number in range(TABLES):
            table = self.source(number)
            found.append({"table": table, "name": f"all{number}", "target": f"{targets}/all{number}", "key": ["id"]})
            some = {"columns": ["id", "total"], "where": "total > 500000"}
            found.append(
                {"table": table, "name": f"some{number}", "target": f"{targets}/some{number}", "key": ["id"], **some}
            )
        return found

    def views(self, targets: Path) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for number in range(TABLES):
            sql, tables = self.query(number)
            options = {"sql": sql, "tables": tables}
            found.append(
                {
                    "table": self.source(number),
                    "name": f"view{number}",
                    "consumer": "view",
                    "target": f"{targets}/view{number}",
                    "options": options,
                }
            )
        return found

    def change(self) -> None:
        """Change and add rows of each table, in one commit."""
        for number in range(TABLES):
            keys = self._draw.choice(self.rows + CHANGED_ROWS // 10, CHANGED_ROWS, replace=False)
            merge = DeltaTable(self.source(number)).merge(
                self._rows(np.sort(keys)), "s.id = t.id", source_alias="s", target_alias="t"
            )
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def _rows(self, keys: np.ndarray) -> pa.Table:
        totals = self._draw.integers(0, 1_000_000, len(keys))
        return pa.table({"id": keys, "customer": keys % 9_973, "total": totals})


_FEED = {"delta.enableChangeDataFeed": "true"}


def iscp_run(file: Path) -> list[str]:
    return [sys.executable, "-m", "iscp.cli.iscp", "run", str(file)]


def job_file(path: Path, jobs: Sequence[dict[str, object]]) -> Path:
    path.write_text(yaml.safe_dump(list(jobs)))
    return path


class WarmSpark:
    """An application of Spark that runs already, and computes a lake's views from all rows when it is called."""

    def __init__(self, lake: Lake, targets: Path) -> None:
        queries = [(*lake.query(number), f"{targets}/view{number}") for number in range(TABLES)]
        command = [sys.executable, "-m", "benchmarks.warm_spark", json.dumps(queries)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.recompute()  # with all that is compiled at the first time

    def recompute(self) -> float:
        """Recompute all views, and return for how many seconds."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        began_s = time.perf_counter()
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        if self._child.stdout.readline().strip() != "done":
            raise RuntimeError("the warm application has ended")
        return time.perf_counter() - began_s

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(60.0)


def measure_small(root: Path, rows: int, runs: int) -> dict[str, object]:
    """Measure runs that have nothing to do, runs that have little, and the script that does what the replicas do."""
    _make_directories(root, "lake", "ours", "alone", "script", "state")
    lake = Lake(root / "lake", rows)
    ours = job_file(root / "jobs.yaml", [*lake.replicas(root / "ours"), *lake.views(root / "ours")])
    replicas = job_file(root / "replicas.yaml", lake.replicas(root / "alone"))
    ten = job_file(root / "ten.yaml", [*lake.replicas(root / "ours")[:5], *lake.views(root / "ours")])
    script = root / "script.py"
    script.write_text(script_of(lake.replicas(root / "script"), root / "state"))
    for command in (iscp_run(ours), iscp_run(replicas), [sys.executable, str(script)]):
        run_process(command)  # what is built at first
    idle, small, alone, scripted = list[Process](), list[Process](), list[Process](), list[Process]()
    for number in range(runs):
        idle.append(run_process(iscp_run(ten)))
        lake.change()
        small.append(run_process(iscp_run(ours)))
        alone.append(run_process(iscp_run(replicas)))
        scripted.append(run_process([sys.executable, str(script)]))
        report_progress(
            "a turn", number=number, idle_s=idle[-1].seconds, small_s=small[-1].seconds, script_s=scripted[-1].seconds
        )
    _compare(root / "alone", root / "script")
    return {
        "idle_s": _middle(each.seconds for each in idle),
        "idle_mib": _middle(each.mib for each in idle),
        "small_s": _middle(each.seconds for each in small),
        "small_mib": _middle(each.mib for each in small),
        "small_jvm": any(each.jvm for each in [*idle, *small, *alone]),
        "replicas_s": _middle(each.seconds for each in alone),
        "script_s": _middle(each.seconds for each in scripted),
        "ratio_script": _middle(one.seconds / other.seconds for one, other in zip(alone, scripted, strict=True)),
    }


def measure_views(root: Path, rows: int, runs: int) -> dict[str, object]:
    """Measure views by runs against a recomputation by an application of Spark that is warm."""
    _make_directories(root, "lake", "ours", "theirs")
    lake = Lake(root / "lake", rows)
    file = job_file(root / "views.yaml", lake.views(root / "ours"))
    run_process(iscp_run(file))
    lake.change()
    run_process(iscp_run(file))
    warm = WarmSpark(lake, root / "theirs")
    try:
        ours, theirs = list[float](), list[float]()
        for number in range(runs):
            lake.change()
            ours.append(run_process(iscp_run(file)).seconds)
            theirs.append(warm.recompute())
            report_progress("a turn of views", number=number, views_s=ours[-1], recomputed_s=theirs[-1])
    finally:
        warm.close()
    _compare(root / "ours", root / "theirs")
    return {
        "big_rows": rows,
        "views_s": _middle(ours),
        "recomputed_s": _middle(theirs),
        "ratio_dbt": _middle(one / other for one, other in zip(ours, theirs, strict=True)),
    }


def measure_first(root: Path) -> dict[str, object]:
    """Measure the first run of an example: three orders, a replica and a view."""
    rows = pa.table({"id": [1, 2, 3], "customer": ["a", "b", "a"], "total": [10.0, 20.0, 30.0]})
    write_deltalake(str(root / "orders"), rows, configuration=_FEED)
    sql = "SELECT customer, sum(total) AS total FROM orders GROUP BY customer"
    options = {"sql": sql, "tables": {"orders": str(root / "orders")}}
    table = str(root / "orders")
    jobs: list[dict[str, object]] = [
        {"table": table, "name": "copy", "target": str(root / "copy"), "key": ["id"]},
        {"table": table, "name": "totals", "consumer": "view", "target": str(root / "totals"), "options": options},
    ]
    return {"first_s": round(run_process(iscp_run(job_file(root / "first.yaml", jobs))).seconds, 2)}


def _make_directories(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir()


def _compare(ours: Path, theirs: Path) -> None:
    """Raise RuntimeError unless all tables below both have the same rows."""
    for place in sorted(theirs.iterdir()):
        found, wanted = (_sorted(each / place.name) for each in (ours, theirs))
        if found != wanted:
            raise RuntimeError(f"{ours / place.name} and {place} have other rows")


def _sorted(place: Path) -> pa.Table:
    """Return the rows of a table of whole numbers, also where vectors mark some as deleted."""
    table = DeltaTable(str(place))
    if "deletionVectors" in (table.protocol().reader_features or ()):
        rows = BagWriter(str(place)).few_rows(table.version(), ROWS_MAX)
    else:
        rows = table.to_pyarrow_table()
    if rows is None:
        raise RuntimeError(f"{place} cannot be read here")
    names = sorted(rows.column_names)
    whole = rows.select(names).combine_chunks().cast(pa.schema([(name, pa.int64()) for name in names]))
    return whole.sort_by([(name, "ascending") for name in names])


def _middle(values: Iterable[float]) -> float:
    return round(median(values), 3)


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--rows", type=click.IntRange(min=2_000), default=200_000, show_default=True, help="Of each table.")
@click.option(
    "--big-rows",
    type=click.IntRange(min=0),
    default=5_000_000,
    show_default=True,
    help="Of each table of the comparison with a recomputation; 0 leaves it out.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(runs: int, rows: int, big_rows: int, as_json: bool) -> None:
    """Measure runs without a cluster."""
    parts: list[Callable[[Path], dict[str, object]]] = [
        measure_first,
        lambda root: measure_small(root, rows, runs),
    ]
    if big_rows:
        parts.append(lambda root: measure_views(root, big_rows, runs))
    result: dict[str, object] = {"benchmark": "run_once", "cpus": os.cpu_count(), "runs": runs, "rows": rows}
    for part in parts:
        root = Path(tempfile.mkdtemp(prefix="iscp-bench-once-"))
        try:
            result |= part(root)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    met = {name: float(str(result[name])) <= aim for name, aim in AIMS.items() if name in result}
    result["aims"] = [
        {"aim": f"{name} <= {AIMS[name]:g}", "measured": result[name], "met": each} for name, each in met.items()
    ]
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
