"""A writer and a maintainer in two processes, and readers meanwhile: each version's rows are those of its watermark."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from iscp.index.lance.index_store import segments_of
from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.model.index_definition import Upkeep
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.maintained_index import (
    ROWS_KEY,
    MaintainedIndex,
    counted,
    model_after,
    random_row,
    rows_of,
    same_rows,
    stored_counts,
)

PROGRAM = [sys.executable, "-m", "tests.fakes.maintained_index_program"]
SEED = 11
DIMENSION = 4


@contextmanager
def process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def finished(started: subprocess.Popen[str], timeout_s: float) -> dict[str, Any]:
    out, err = started.communicate(timeout=timeout_s)
    assert started.returncode == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def play(path: Path, commits: int, rows: int, keys: int, timeout_s: float) -> dict[str, Any]:
    """Write and maintain at the same time, and read; return what the maintainer did and lost."""
    index = MaintainedIndex(str(path / "index"), DIMENSION)
    index.create()
    end = path / "end"
    seen = -1
    with (
        process("write", index.store.root, SEED, commits, rows, keys, DIMENSION) as writer,
        process("maintain-until", index.store.root, end) as maintainer,
    ):
        until = time.monotonic() + timeout_s
        while writer.poll() is None:
            assert time.monotonic() < until
            at = index.store.open()
            commit = int(at.head.records[ROWS_KEY])
            assert commit >= seen, "a reader has gone back"
            seen = commit
            model = model_after(SEED, commit, rows, keys, DIMENSION)
            assert same_rows(rows_of(at), model)
            assert stored_counts(at, 1) == counted(model, 1)[0]
        assert finished(writer, timeout_s) == {"commits": commits}
        end.touch()
        done = finished(maintainer, timeout_s)
    at = index.store.open()
    model = model_after(SEED, commits, rows, keys, DIMENSION)
    assert same_rows(rows_of(at), model)
    assert int(at.head.records[ROWS_KEY]) == commits
    assert stored_counts(at, 1) == counted(model, 1)[0]
    assert {each.name for each in segments_of(at.dataset)} >= {"words_1"}
    return done


def test_each_version_has_the_rows_of_its_watermark_while_a_maintainer_works(tmp_path: Path) -> None:
    done = play(tmp_path, commits=25, rows=400, keys=6_000, timeout_s=240)
    assert done["done"].get("segments", 0) >= 1


# The long version of the test above.
@pytest.mark.full
def test_each_version_has_the_rows_of_its_watermark_in_a_long_run(tmp_path: Path) -> None:
    done = play(tmp_path, commits=300, rows=400, keys=9_000, timeout_s=1_800)
    assert done["done"].keys() >= {"segments", "counts", "compact"}


@pytest.mark.full
def test_a_writer_that_never_pauses_does_not_keep_deleted_rows_for_ever(tmp_path: Path) -> None:
    index = MaintainedIndex(str(tmp_path / "index"))
    index.create()
    chance = random.Random(SEED)
    index.change({str(key): random_row(chance) for key in range(4_000)}, [])
    ends = threading.Event()
    lost: list[Upkeep] = []

    def maintain_always() -> None:
        while not ends.is_set():
            lost.extend(maintain(index.store, MaintenanceLimits(), SystemClock(), EnvironmentFailpoints({}), 0.0).lost)

    maintainer = threading.Thread(target=maintain_always)
    maintainer.start()
    try:
        for _ in range(60):
            with index.store.writing:
                index.change_randomly(chance, 400, 4_000)
    finally:
        ends.set()
        maintainer.join()
    maintain(index.store, MaintenanceLimits(), SystemClock(), EnvironmentFailpoints({}), 60.0)
    at = index.store.open()
    physical = sum(each.physical_rows for each in at.dataset.get_fragments())
    assert physical < 2 * at.head.rows, f"{lost} were lost"
    assert same_rows(rows_of(at), index.model)


def test_what_has_lost_is_done_again_alone(tmp_path: Path) -> None:
    index = MaintainedIndex(str(tmp_path / "index"))
    index.create()
    chance = random.Random(SEED)
    index.change({str(key): random_row(chance) for key in range(3_000)}, [])
    maintain(index.store, MaintenanceLimits(), SystemClock(), EnvironmentFailpoints({}), 60.0)
    for _ in range(6):
        index.change_randomly(chance, 400, 3_000)
    points = ScriptedFailpoints()
    points.once("maintain.compact.written", lambda: index.change_randomly(chance, 400, 3_000))
    done = maintain(index.store, MaintenanceLimits(), SystemClock(), points, 60.0)
    assert done.lost == (Upkeep.COMPACT,)
    assert Upkeep.COMPACT in done.actions
    assert same_rows(rows_of(index.store.open()), index.model)
