"""The engines over the same sources: the first load side by side, and then two batches by turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake

from benchmarks.progress import report_progress
from benchmarks.propagation.processes import spent_s
from benchmarks.tpcdi.comparison import differences, rows_of
from benchmarks.tpcdi.engines import ENGINES
from benchmarks.tpcdi.source_rows import SourceChange, SourceRows
from benchmarks.tpcdi.warehouse import SOURCE, VIEWS
from iscp.system.child_process import tail, tied_to_parent

FEED = {"delta.enableChangeDataFeed": "true"}
BATCHES = (2, 3)
STOP_WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Turn:
    """What one engine did in one batch: the clock, the processor time of all its processes, and its views."""

    clock_s: float
    cpu_s: float
    views: dict[str, dict[str, Any]]


class EngineChild:
    """The process of an engine."""

    def __init__(self, name: str, root: Path, sources: Mapping[str, str]) -> None:
        self.name, self.targets = name, root / name / "views"
        self.targets.mkdir(parents=True)
        self._log = root / f"{name}.log"
        program = [sys.executable, "-m", "benchmarks.tpcdi.engine_process", name, str(self.targets)]
        with self._log.open("wb") as stderr:
            self._child = subprocess.Popen(
                tied_to_parent([*program, json.dumps(dict(sources))]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def bring_on(self, changed: Sequence[str]) -> Turn:
        """Have all views below these sources brought on. Raises RuntimeError with the end of its log."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        spent, began_s = spent_s(self._child.pid), time.perf_counter()
        self._child.stdin.write(json.dumps(list(changed)) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.name} has ended:\n{tail(self._log)}")
        clock_s, cpu_s = time.perf_counter() - began_s, spent_s(self._child.pid) - spent
        return Turn(clock_s, cpu_s, {each["name"]: each for each in json.loads(answer)})

    def stop(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(STOP_WAIT_S)


class Contest:
    """The sources, which the contest alone changes, and a process for each engine.

    `wrong`: views that were not as a recomputation has them after a batch, and how many rows were only in one of both.
    """

    def __init__(self, root: Path, rows: SourceRows) -> None:
        self._root, self._rows = root, rows
        self.wrong: dict[str, int] = {}
        first = rows.first()
        self._sources = {f"{SOURCE}{name}": str(root / "sources" / name) for name in first}
        for name, table in first.items():
            write_deltalake(self._sources[f"{SOURCE}{name}"], table, configuration=FEED)

    def run(self) -> dict[str, dict[str, Turn]]:
        """The turns of both batches by engine."""
        found = {}
        with ExitStack() as running:
            engines = []
            for name in ENGINES:
                engine = EngineChild(name, self._root, self._sources)
                running.callback(engine.stop)
                engines.append(engine)
            self._load(engines)
            for number in BATCHES:
                changed = self._change(number)
                found[f"batch{number}"] = self._turns(f"batch{number}", engines, changed)
                engines = [*engines[1:], engines[0]]
        return found

    def _load(self, engines: Sequence[EngineChild]) -> None:
        """Have all engines do the first load, side by side: they are compared by what comes after it."""
        with ThreadPoolExecutor(len(engines)) as pool:
            turns = pool.map(lambda engine: engine.bring_on(list(self._sources)), engines)
            report_progress("first load", views=[len(turn.views) for turn in turns])
        self._compare("first load", {engine.name: engine for engine in engines})

    def _turns(self, batch: str, engines: Sequence[EngineChild], changed: Sequence[str]) -> dict[str, Turn]:
        found = {}
        for engine in engines:
            found[engine.name] = turn = engine.bring_on(changed)
            report_progress(batch, engine=engine.name, clock_s=round(turn.clock_s, 2), cpu_s=round(turn.cpu_s, 2))
        self._compare(batch, {engine.name: engine for engine in engines})
        return found

    def _compare(self, batch: str, engines: Mapping[str, EngineChild]) -> None:
        """Whether iscp's views have the rows that Spark computes, and DuckDB's as many."""
        for view in VIEWS:
            ours, theirs, ducks = (rows_of(str(engines[name].targets / view.name)) for name in ENGINES)
            if apart := differences(ours, theirs) + abs(len(ducks) - len(theirs)):
                self.wrong[f"{batch} {view.name}"] = apart
        report_progress(batch, compared=len(VIEWS), wrong=self.wrong)

    def _change(self, number: int) -> list[str]:
        trades = DeltaTable(self._sources[f"{SOURCE}trade"]).to_pyarrow_table()
        changes = self._rows.batch(number, trades)
        for each in changes:
            apply_change(self._sources[f"{SOURCE}{each.table}"], each)
        os.sync()  # the files of the sources are written, and nobody who is measured waits for the disk with them
        return [f"{SOURCE}{each.table}" for each in changes]


def apply_change(uri: str, change: SourceChange) -> None:
    """One commit for each of what a batch does to a source."""
    if change.appends is not None:
        write_deltalake(uri, change.appends, mode="append")
    same = f"t.{change.key} = s.{change.key}"
    if change.upserts is not None:
        merge = DeltaTable(uri).merge(change.upserts, same, source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    if change.deletes is not None:
        DeltaTable(uri).merge(change.deletes, same, source_alias="s", target_alias="t").when_matched_delete().execute()
