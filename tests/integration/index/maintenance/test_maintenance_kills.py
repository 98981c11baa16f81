"""A maintenance that is killed anywhere leaves an index whose rows are right, and the next one goes on."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.maintenance.index_shape import read_shape
from iscp.index.model.index_definition import Upkeep, next_action
from iscp.system.failpoints import VARIABLE, EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.maintained_index import (
    MaintainedIndex,
    counted,
    indexed,
    random_row,
    rows_of,
    same_rows,
    stored_counts,
)
from tests.selection import in_full

DIMENSION = 4
ROWS = 5_400

INNER = {
    Upkeep.SEGMENTS: ("maintain.segments.built",),
    Upkeep.STATE: ("maintain.segments.built",),
    Upkeep.MERGE: ("maintain.segments.built",),
    Upkeep.COMPACT: ("maintain.compact.written", "maintain.compact.committed"),
    Upkeep.CALIBRATE: ("maintain.calibrate.found", "index.fragments", "index.commit.before", "index.commit.after"),
    Upkeep.COUNTS: ("maintain.counts.written", "index.commit.before", "index.commit.after"),
    Upkeep.CLEAN_UP: ("maintain.clean-up.versions",),
}

CASES = [
    (kind, point)
    for kind, inner in INNER.items()
    for point in (f"maintain.{kind.value}.before", *inner, f"maintain.{kind.value}.after")
]


def due(path: Path, kind: Upkeep) -> MaintainedIndex:
    """An index of which just this is due first, as far as that is possible."""
    chance = random.Random(3)
    index = MaintainedIndex(str(path / "index"), DIMENSION)
    index.create()
    index.change({str(each): random_row(chance, DIMENSION) for each in range(ROWS)}, [])
    if kind is Upkeep.SEGMENTS:
        return index
    limits = MaintenanceLimits(keep_s=600.0)
    budget_s = 0.0 if kind is Upkeep.CALIBRATE else 60.0
    maintain(index.store, limits, SystemClock(), EnvironmentFailpoints({}), budget_s)
    if kind is Upkeep.STATE:
        index.store.open().dataset.optimize.optimize_indices(retrain=True)
        index.change({}, ["1", "2"])
    elif kind is Upkeep.MERGE:
        for number in range(8):
            index.change({f"{number}-{each}": random_row(chance, DIMENSION) for each in range(1_001)}, [])
            maintain(index.store, limits, SystemClock(), EnvironmentFailpoints({}), 0.0)
    elif kind is Upkeep.COMPACT:
        index.change({}, [str(each) for each in range(2_800)])
    elif kind is Upkeep.COUNTS:
        for _ in range(8):
            index.change_randomly(chance, 10, ROWS)
    found = next_action(read_shape(index.store.open(), 0.0, SystemClock().now_s()))
    assert found is not None
    assert found.kind is kind
    return index


def assert_right(index: MaintainedIndex) -> None:
    at = index.store.open()
    assert same_rows(rows_of(at), index.model)
    for number in (0, 1):
        words, rows, length = counted(index.model, number)
        assert stored_counts(at, number) == words
        assert (at.head.totals[number].rows, at.head.totals[number].words) == (rows, length)


@pytest.mark.parametrize(
    ("kind", "point"),
    in_full(
        CASES,
        [CASES[1], (Upkeep.COMPACT, "maintain.compact.committed"), (Upkeep.CLEAN_UP, INNER[Upkeep.CLEAN_UP][0])],
        unpack=True,
    ),
)
@pytest.mark.slow(but=1)
def test_a_killed_maintenance_changes_no_row_and_is_finished_by_the_next(
    tmp_path: Path, kind: Upkeep, point: str
) -> None:
    index = due(tmp_path, kind)
    killed = subprocess.run(
        [sys.executable, "-m", "tests.fakes.maintained_index_program", "maintain", index.store.root],
        env={**os.environ, VARIABLE: f"{point}=kill:1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert_right(index)
    index.change_randomly(random.Random(9), 50, ROWS)
    maintain(
        index.store, MaintenanceLimits(keep_s=0.0, in_flight_s=0.0), SystemClock(), EnvironmentFailpoints({}), 60.0
    )
    assert_right(index)
    at = index.store.open()
    assert next_action(read_shape(at, 600.0, SystemClock().now_s())) is None
    for number in (0, 1):
        indexed(at, number)
