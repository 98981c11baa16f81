"""Plays seeds one after the other, and shows the smallest case of each that fails."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.random_logs.cases import LogCase
from tests.random_logs.drawing import case_of
from tests.random_views.plan_check import Wrong
from tests.random_views.shrinking import shrink

COMMAND = ".venv/bin/python -m tests.random_logs"

SHRINKS_MAX = 120
"""Cases that are tried to make one that fails smaller."""

Trial = Callable[[LogCase], Wrong | None]


@dataclass
class PlayedLogs:
    """`took_s`: the seconds of all cases, without those that were tried to make one smaller."""

    played: int = 0
    took_s: float = 0.0
    failed: dict[int, str] = field(default_factory=dict)

    def summary(self) -> str:
        each_s = self.took_s / max(1, self.played)
        lines = [f"{self.played} played, {each_s:.2f} s each, {len(self.failed)} failed: {[*self.failed]}"]
        return "\n".join([*lines, *[f"  {n} × {where}" for where, n in Counter(self.failed.values()).most_common()]])


def play_seeds(
    seeds: Iterable[int],
    trial: Trial,
    shrinks_max: int = SHRINKS_MAX,
    failures_max: int = sys.maxsize,
    command: str = COMMAND,
) -> PlayedLogs:
    """After so many failures no further seed is played. `command` replays one by `--seed`."""
    played = PlayedLogs()
    for seed in seeds:
        case, begun_s = case_of(seed), time.monotonic()
        wrong = tried(trial, case)
        played.played += 1
        played.took_s += time.monotonic() - begun_s
        if wrong is not None:
            played.failed[seed] = wrong.where
            sys.stdout.write(report(seed, case, wrong, trial, shrinks_max, command))
            sys.stdout.flush()
            if len(played.failed) >= failures_max:
                break
    return played


def tried(trial: Trial, case: LogCase) -> Wrong | None:
    """What is raised is wrong too."""
    try:
        return trial(case)
    except Exception as error:  # noqa: BLE001  # whatever an iteration raises is what is wrong with it
        return Wrong(f"raises {type(error).__name__}", str(error)[:2000])


def report(seed: int, case: LogCase, wrong: Wrong, trial: Trial, shrinks_max: int, command: str) -> str:
    """The smallest case that is wrong in the same place."""
    found = {case: wrong}

    def fails(less: LogCase) -> bool:
        now = tried(trial, less)
        if now is None or now.where != wrong.where:
            return False
        found[less] = now
        return True

    least = shrink(case, fails, shrinks_max) if shrinks_max else case
    left = found[least]
    return f"{least.shown()}\n{left.where}:\n{left.rows}\n{least!r}\nreplay: {command} --seed {seed}\n\n"
