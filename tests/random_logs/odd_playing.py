"""Plays seeds of odd cases in a child process, which may die or hang: that is what is wrong with the seed, then.

Run as a program, with the first seed and how many: that is the child. It writes a line of JSON for each seed.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.random_logs.odd_cases import Oddity, odd_case_of
from tests.random_views.plan_check import Wrong

ODD_COMMAND = ".venv/bin/python -m tests.random_logs --odd"

SEED_S_MAX = 180.0
"""Seconds in which a child says what came of a seed; then it hangs."""

MIB_MAX = 192
"""MiB that playing a seed may take beyond what the process had, by what it takes itself: the generator's own rows."""

DICTIONARY_MIB_MAX = 400
"""The same of long values: the generator and the target have 75 MiB of them, and each once more while it is copied."""

_KIB_OF_STATUS = ("VmHWM", "VmRSS")


@dataclass
class PlayedOdds:
    """By which ways seeds have ended, what is wrong with those that failed, and the most MiB that one took."""

    ways: Counter[str] = field(default_factory=Counter)
    failed: dict[int, Wrong] = field(default_factory=dict)
    played: int = 0
    took_s: float = 0.0
    mib: int = 0

    def add(self, seed: int, said: dict[str, Any]) -> None:
        case = odd_case_of(seed)
        self.played += 1
        self.mib = max(self.mib, said["mib"])
        if said["wrong"]:
            self.failed[seed] = Wrong(*said["wrong"])
        elif said["mib"] > (bound := mib_max(seed)):
            self.failed[seed] = Wrong(f"{case.oddity} {case.where}", f"takes {said['mib']} MiB, more than {bound}")
        self.ways[f"{case.oddity}: {said['way'] or 'wrong'}"] += 1

    def summary(self) -> str:
        each_s = self.took_s / max(1, self.played)
        lines = [f"{self.played} odd ones played, {each_s:.3f} s each, at most {self.mib} MiB"]
        lines += [f"  {number} × {way}" for way, number in sorted(self.ways.items())]
        lines += [
            f"{odd_case_of(seed).shown()}\n{wrong.where}:\n{wrong.rows}\nreplay: {ODD_COMMAND} --seed {seed}\n"
            for seed, wrong in self.failed.items()
        ]
        return "\n".join([*lines, f"{len(self.failed)} failed: {[*self.failed]}"])


def mib_max(seed: int) -> int:
    return DICTIONARY_MIB_MAX if odd_case_of(seed).oddity is Oddity.DICTIONARY else MIB_MAX


def play_odd(seeds: Sequence[int], minutes: float = float("inf")) -> PlayedOdds:
    """Seeds that follow on each other, by as many children as die."""
    played, begun_s = PlayedOdds(), time.monotonic()
    left = list(seeds)
    while left and time.monotonic() < begun_s + 60 * minutes:
        with tempfile.TemporaryDirectory() as work:
            for seed, said in _by_child(left, Path(work)):
                if said["mib"] > mib_max(seed):  # an allocator may have given back meanwhile what former seeds took
                    ((_, said),) = _by_child([seed], Path(work))
                played.add(seed, said)
                left.remove(seed)
                if time.monotonic() > begun_s + 60 * minutes:
                    break
    played.took_s = time.monotonic() - begun_s
    return played


def _by_child(seeds: Sequence[int], work: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """What a child says of each seed, until one ends it."""
    command = [sys.executable, "-m", "tests.random_logs.odd_playing", str(work), *map(str, seeds)]
    with Path(work, "errors").open("wb") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, bufsize=0)
        assert child.stdout is not None
        try:
            for seed in seeds:
                line = _line(child.stdout)
                if not line.endswith(b"\n"):
                    child.kill()
                    how = "hangs" if line == b"..." else f"the process ends by {child.wait()}"
                    text = Path(work, "errors").read_text(errors="replace")[-1_000:]
                    yield seed, {"way": "", "wrong": [how, text], "mib": 0}
                    return
                yield seed, json.loads(line)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()


def _line(stream: IO[bytes]) -> bytes:
    """The next line; less of it where the child has ended, and three points where it takes too long."""
    until_s, found = time.monotonic() + SEED_S_MAX, b""
    with selectors.DefaultSelector() as waiting:
        waiting.register(stream, selectors.EVENT_READ)
        while not found.endswith(b"\n"):
            if not waiting.select(max(0.0, until_s - time.monotonic())):
                return b"..."
            if not (part := stream.read(1)):
                return found
            found += part
    return found


def _mib() -> tuple[int, int]:
    """The most memory that this process has had since it was forgotten, and what it has now."""
    said = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak, now = (int(said[name].split()[0]) // 1024 for name in _KIB_OF_STATUS)
    return peak, now


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main(work: str, *seeds: str) -> None:
    """The child."""
    from tests.random_logs.odd_check import check_odd  # what the parent does without

    logging.disable(logging.CRITICAL)  # refused and lost changes are what cases are made of
    out = os.fdopen(os.dup(1), "w", buffering=1)
    check_odd(odd_case_of(0), Path(work, "first"))  # libraries take memory when they are first used
    for seed in map(int, seeds):
        case = odd_case_of(seed)
        _forget_peak()
        _, before = _mib()
        try:
            way, wrong = check_odd(case, Path(work, str(seed)))
        except Exception as error:  # noqa: BLE001  # whatever is raised is what is wrong with it
            way, wrong = "", Wrong(f"raises {type(error).__name__}", str(error)[:2_000])
        found = None if wrong is None else [wrong.where, wrong.rows[:2_000]]
        out.write(json.dumps({"way": way, "wrong": found, "mib": _mib()[0] - before}) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
