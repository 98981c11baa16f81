"""Processes below one, by /proc: what they have computed, and how all of them are stopped and go on."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from contextlib import suppress
from pathlib import Path


def tree(root: int) -> dict[int, float]:
    """Return the processor seconds of a process and of each below it, with those of ended ones that were waited for."""
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(int(stat.parent.name))
    found, waiting = dict[int, float](), [root]
    while waiting:
        pid = waiting.pop()
        if pid in ticks:
            found[pid] = ticks[pid] / os.sysconf("SC_CLK_TCK")
            waiting += children[pid]
    return found


def spent_s(root: int) -> float:
    return sum(tree(root).values())


def stop_all(root: int) -> None:
    _signal(root, signal.SIGSTOP)


def go_on_all(root: int) -> None:
    _signal(root, signal.SIGCONT)


def _signal(root: int, number: signal.Signals) -> None:
    for pid in tree(root):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
