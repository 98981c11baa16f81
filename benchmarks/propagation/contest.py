"""All drivers by turns: each round of each step is played by one after the other, and another begins each time."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.progress import report_progress
from benchmarks.propagation.driver import Driver, Place
from benchmarks.propagation.history import History, Step
from benchmarks.propagation.measuring import Bench, Round
from benchmarks.propagation.medallion import Derived
from benchmarks.propagation.results import Results
from benchmarks.propagation.source_lake import SourceLake

MakeDriver = Callable[[Place], Driver]
WARMING = (Step.APPEND, Step.UPDATE, Step.DELETE, Step.DIMENSION)
"""Steps that have a round before all others, which does not count: what is loaded and compiled at first is there then.
"""

ONCE = (Step.FIRST, Step.IDLE)
"""Steps of one round."""

Played = Mapping[str, Mapping[Step, Sequence[Round]]]
"""The rounds of each driver's steps."""


class Contest:
    """Drivers over copies of one history."""

    def __init__(
        self, root: Path, history: History, derived: Sequence[Derived], makers: Mapping[str, MakeDriver], idle_s: float
    ) -> None:
        self._history = history
        self._idle_s = idle_s
        self._results = Results(derived)
        first = history.first()
        self._reference = SourceLake(root / "reference", first)
        self._drivers: list[Driver] = []
        for name, make in makers.items():
            own = root / name
            folder = own / "own"
            folder.mkdir(parents=True)
            self._drivers.append(make(Place(folder, SourceLake(own / "sources", first), derived)))

    def run(self, steps: Sequence[Step]) -> dict[str, dict[Step, list[Round]]]:
        """Start the drivers, play the steps after the first rows, and stop them."""
        found: dict[str, dict[Step, list[Round]]] = {driver.name: defaultdict(list) for driver in self._drivers}
        with ExitStack() as running:
            benches = []
            for driver in self._drivers:
                running.callback(driver.stop)
                driver.start()
                benches.append(Bench(driver, self._results))
            for name, played in self._play(benches, Step.FIRST, 0):
                found[name][Step.FIRST].append(played)
            for step in WARMING:
                self._play(benches, step, self._history.rounds)
            for step in steps:
                for number in range(1 if step in ONCE else self._history.rounds):
                    for name, played in self._play(benches, step, number):
                        found[name][step].append(played)
                    benches = [*benches[1:], benches[0]]
        return found

    def _play(self, benches: Sequence[Bench], step: Step, number: int) -> list[tuple[str, Round]]:
        commits = self._history.changes(step, number)
        if commits:
            self._reference.apply(commits)
        self._results.advance(self._reference)
        played = []
        for bench in benches:
            if step in bench.driver.cannot:
                continue
            found = bench.play(step, commits, self._idle_s)
            report_progress(
                step.value,
                round=number,
                counts=number < self._history.rounds,
                driver=bench.driver.name,
                **found.to_json(),
            )
            played.append((bench.driver.name, found))
        return played

    def describe_drivers(self) -> dict[str, Any]:
        return {each.name: {"warm": each.warm, "cannot": dict(each.cannot)} for each in self._drivers}


def figures_of(played: Played) -> dict[str, Any]:
    """The figures of each step by each driver."""
    return {
        name: {step.value: _figures(step, rounds) for step, rounds in steps.items()} for name, steps in played.items()
    }


def _figures(step: Step, rounds: Sequence[Round]) -> dict[str, Any]:
    lags = [each.lag_s for each in rounds]
    moved = step not in (Step.IDLE, Step.OVERWRITE)
    return {
        "rounds": len(rounds),
        # Where nothing is to change, nothing can be late.
        **({"lag_p50_s": round(statistics.median(lags), 3), "lag_p95_s": round(p95(lags), 3)} if moved else {}),
        "settled_p50_s": round(statistics.median(each.settled_s for each in rounds), 3),
        "cpu_s": round(statistics.mean(each.cpu_s for each in rounds), 2),
        "bytes": round(statistics.mean(each.bytes for each in rounds)),
        "wrong_rounds": sum(bool(each.wrong) for each in rounds),
        "wrong": sorted({name for each in rounds for name in each.wrong}),
    }


def p95(values: Sequence[float]) -> float:
    """Return the value that 95 of 100 do not exceed, between those that were measured if they are few."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]
