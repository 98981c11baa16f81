"""Plays seeds one after the other, and shows the smallest case of each that fails."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tests.random_views.cases import Case, case_of
from tests.random_views.plan_check import UnfitCaseError, Wrong
from tests.random_views.query_tree import Mode
from tests.random_views.shrinking import shrink

COMMAND = ".venv/bin/python -m tests.random_views"

SHRINKS_MAX = 250
"""Cases that are tried to make one that fails smaller."""

SUMMARY_EVERY = 100
"""Seeds after which it is shown how many have failed."""

Trial = Callable[[Case], Wrong | None]
"""What is wrong with a case. Raises UnfitCaseError."""


@dataclass
class PlayedSeeds:
    played: int = 0
    failed: list[int] = field(default_factory=list)
    unfit: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        lines = [f"{self.played} played, {self.unfit.total()} are no queries, {len(self.failed)} failed: {self.failed}"]
        return "\n".join([*lines, *[f"  {number} × {why}" for why, number in self.unfit.most_common(12)]])


def play_seeds(seeds: Iterable[int], trial: Trial, command: str, mode: Mode = Mode.PLAIN) -> PlayedSeeds:
    """`command` replays one by `--seed`."""
    played = PlayedSeeds()
    for seed in seeds:
        case = case_of(seed, mode)
        try:
            wrong = tried(trial, case)
        except UnfitCaseError as unfit:
            played.unfit[str(unfit).strip().split("\n")[0][:160]] += 1
            continue
        played.played += 1
        if wrong is not None:
            played.failed.append(seed)
            sys.stdout.write(report(seed, case, wrong, trial, command))
        if played.played % SUMMARY_EVERY == 0 or wrong is not None:
            sys.stdout.write(f"{command} --seed {seed}: {played.summary()}\n")
            sys.stdout.flush()
    return played


def tried(trial: Trial, case: Case) -> Wrong | None:
    """What is raised is wrong too."""
    try:
        return trial(case)
    except UnfitCaseError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a refresh raises is what is wrong with it
        return Wrong(f"raises {type(error).__name__}", str(error)[:2000])


def report(seed: int, case: Case, wrong: Wrong, trial: Trial, command: str) -> str:
    """The smallest case that is wrong in the same place."""
    found = {case: wrong}

    def fails(less: Case) -> bool:
        try:
            now = tried(trial, less)
        except UnfitCaseError:
            return False
        if now is None or now.where != wrong.where:
            return False
        found[less] = now
        return True

    least = shrink(case, fails, SHRINKS_MAX)
    left = found[least]
    return f"{least.shown()}\n{left.where}:\n{left.rows}\n{least!r}\nreplay: {command} --seed {seed}\n"
