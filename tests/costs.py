"""What tests cost, by the clock and in processor time: of the process and of all below it, also on a busy machine.

As a plugin of pytest (-p tests.costs --costs FILE) it appends each phase of each test (setup, call, teardown) to FILE,
as a line of JSON. As a program (`python -m tests.costs FILE`) it shows their sum, and which tests cost most.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

SHOWN = 10

WEIGHED_FROM_S = 0.05
"""Phases that end sooner are not weighed, for that takes milliseconds: what they cost goes to the next that is."""

SPENT_S = pytest.StashKey[float]()


def spent_s() -> float:
    """Processor time of this process, of those below it, and of those that have ended and were waited for."""
    return sum(os.times()[:4]) + _spent_below_s(os.getpid())


def _spent_below_s(root: int) -> float:
    """0 where there is no /proc: there only those that have ended count."""
    ticks: dict[int, int] = {}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(int(stat.parent.name))
    total, waiting = 0, list(children[root])
    while waiting:
        pid = waiting.pop()
        total += ticks[pid]
        waiting += children[pid]
    return total / os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", metavar="FILE", required=True, help="append what each phase of each test costs to FILE")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SPENT_S] = spent_s()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Ledger(Path(config.getoption("--costs"))))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    report.cpu_s = 0.0
    if report.duration >= WEIGHED_FROM_S:
        before_s, item.config.stash[SPENT_S] = item.config.stash[SPENT_S], spent_s()
        report.cpu_s = item.config.stash[SPENT_S] - before_s
    return report


class _Ledger:
    """Where all reports arrive: in the process that started the others, or in the only one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cpu_s = getattr(report, "cpu_s", 0.0)
        line = {"test": report.nodeid, "phase": report.when, "cpu_s": cpu_s, "wall_s": report.duration}
        with self._file.open("a") as out:
            out.write(json.dumps(line) + "\n")


def shown(lines: Iterable[str]) -> Iterator[str]:
    """Of the tests that cost most, by the processor or by the clock, what each cost."""
    cpu_s, wall_s = Counter[str](), Counter[str]()
    for phase in map(json.loads, lines):
        cpu_s[phase["test"]] += phase["cpu_s"]
        wall_s[phase["test"]] += phase["wall_s"]
    yield f"{cpu_s.total():.0f} s of processor time; the {SHOWN} slowest tests by it, and by the clock:"
    slowest = dict(cpu_s.most_common(SHOWN)) | dict(wall_s.most_common(SHOWN))
    for test in sorted(slowest, key=lambda test: -cpu_s[test]):
        yield f"{cpu_s[test]:7.1f} s cpu {wall_s[test]:7.1f} s  {test}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in shown(Path(sys.argv[1]).read_text().splitlines()))
