"""A table is split and merged while it changes: the sharded example of docs/consumers.md equals it, row by row."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest
from deltalake import DeltaTable

from iscp.app.registry import GROUP, ConsumerRegistry
from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import changes, rows_after
from iscp.delta.log.commits import read_commit
from iscp.model.job.iteration import Bounds, DataType, JobOutcome
from iscp.model.job.job_row import JobReport, JobRow, LogEntry
from iscp.model.job.watermark_record import WatermarkRecord, parse_record
from iscp.model.rows import key_ranges
from iscp.model.values.errors import EngineError, ErrorCode
from iscp.schedule.runner import Runner
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.packages import install
from tests.selection import in_full

from .conftest import SPARK_IN_FULL, Pipeline
from .test_custom_consumers import job

pytestmark = [pytest.mark.spark, SPARK_IN_FULL]

EXAMPLES = Path(__file__).parents[3] / "examples"


class Ranges:
    """A job on the sharded example; its rows are those of a book, and its runners are recreated for each iteration."""

    def __init__(self, pipeline: Pipeline, root: Path, path: pytest.MonkeyPatch) -> None:
        self.pipeline, self.file, self.number = pipeline, str(root / "target.db"), 1
        for name, kind in (("iscp_sqlite", "SqliteTable"), ("iscp_sqlite_sharded", "ShardedSqliteTable")):
            install(root / "site", name, (EXAMPLES / f"{name}.py").read_text(), GROUP, **{name: kind})
        path.syspath_prepend(str(root / "site"))
        self.kinds = ConsumerRegistry(allowed=("iscp_sqlite_sharded",)).kind
        row = job(pipeline, self.kinds("iscp_sqlite_sharded"), self.file)
        self.book = JobBook([row._replace(job_id="000001")])
        self.key = row.key
        self.commits: list[tuple[int, int, str]] = []

    @property
    def rows(self) -> tuple[JobRow, ...]:
        return self.book.rows_of(self.key)

    def row(self, range_id: int) -> JobRow:
        return next(row for row in self.rows if row.key.range_id == range_id)

    def reshard(self, merge: bool, range_id: int = 0) -> None:
        self.number += 1
        done = changes(self.book.ranges(self.key.table_id), merge, range_id)
        self.book.commit([LogEntry(row) for row in rows_after(self.rows, done, f"{self.number:06}", 1.0)])

    def runner(
        self, bounds: Bounds | None = None, failing: Mapping[str, Callable[[], object]] = MappingProxyType({})
    ) -> Runner:
        """`failing`: what happens at which failpoints."""
        failpoints = ScriptedFailpoints()
        for name, what in failing.items():
            failpoints.once(name, what)
        return self.pipeline.new_runner(failpoints, bounds, kinds=self.kinds)

    def run(self, row: JobRow, runner: Runner | None = None, told: bool = True) -> JobOutcome:
        """`told`: the owner hears of it."""
        (outcome,) = self.pipeline.run(row, runner=runner or self.runner())
        if outcome.ok and told:
            self.book.apply([JobReport(row.key, row.job_id, outcome.watermark, outcome.seq)])
        return outcome

    def finish(self) -> None:
        """Everything that is outstanding, at all ranges."""
        newest = DeltaTable(self.pipeline.source).version()
        for range_id in self.book.ranges(self.key.table_id):
            for _ in range(20):
                outcome = self.run(self.row(range_id))
                assert outcome.ok, outcome.error_msg
                if outcome.watermark.version >= newest:
                    break

    def records(self) -> dict[str, WatermarkRecord]:
        with closing(sqlite3.connect(self.file)) as db:
            found = db.execute("SELECT key, value FROM iscp_watermarks").fetchall()
        return {key.partition("#")[2] or "1": parse_record(value) for key, value in found}

    def assert_equal(self) -> None:
        """Against a recomputation, and each row by the hash of its key in the range that wrote it last."""
        source = DeltaTable(self.pipeline.source).to_pyarrow_table().to_pylist()
        with closing(sqlite3.connect(self.file)) as db:
            found = db.execute("SELECT id, v, g, _key_hash FROM rows").fetchall()
        assert sorted(row[:3] for row in found) == sorted((row["id"], row["v"], row["g"]) for row in source)
        hashed = {row[0]: row[3] for row in found}
        ranges = self.book.ranges(self.key.table_id)
        assert all(sum(key_ranges.holds(each, value) for each in ranges) == 1 for value in hashed.values())

    def versions(self) -> dict[int, int]:
        """Which commit each row was written by."""
        with closing(sqlite3.connect(self.file)) as db:
            return dict(db.execute("SELECT id, _commit_version FROM rows"))


@pytest.fixture
def ranges(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ranges:
    return Ranges(pipeline, tmp_path, monkeypatch)


def test_halves_go_on_where_the_whole_was_and_the_whole_where_they_are(ranges: Ranges) -> None:
    pipeline = ranges.pipeline
    assert ranges.run(ranges.row(1)).data_type is DataType.SNAPSHOT
    pipeline.upsert([1, 2, 60], "one")
    late = ranges.row(1)
    ranges.reshard(merge=False)

    # The former whole has read its changes when a half begins: it fails, and the other half goes on all the same.
    half = ranges.row(3)
    outcome = ranges.run(late, ranges.runner(failing={"read.after": lambda: ranges.run(half)}), told=False)
    assert outcome.error_code == ErrorCode.SUPERSEDED
    low = ranges.run(ranges.row(2))
    assert (low.data_type, low.from_version, low.watermark.version) == (DataType.TAIL, 0, 1)
    ranges.assert_equal()
    assert {version for each, version in ranges.versions().items() if each not in (1, 2, 60)} == {0}

    # One half gets ahead of the other, and then they are merged.
    pipeline.delete("id % 3 = 0")
    pipeline.upsert(range(10), "two")
    ranges.run(ranges.row(3))
    pipeline.upsert([5, 70], "three")
    ahead = ranges.row(3)
    ranges.reshard(merge=True, range_id=3)
    merged = ranges.run(ranges.row(1))
    assert (merged.data_type, merged.watermark.version) == (DataType.TAIL, 4)
    assert ranges.run(ahead, told=False).error_code == ErrorCode.SUPERSEDED
    assert ranges.records()["1"].watermark.version == 4
    ranges.assert_equal()


@pytest.mark.further  # each time: test_steps.py, and merges below
def test_a_large_commit_is_taken_in_steps_by_each_range_and_merged_between_steps(ranges: Ranges) -> None:
    pipeline = ranges.pipeline
    ranges.run(ranges.row(1))
    ranges.reshard(merge=False)
    pipeline.upsert(range(200), "large")
    large = read_commit(pipeline.source, 1)
    assert large is not None
    bounds = Bounds(bytes_max=large.bytes // 4 + 1)
    steps = [ranges.run(ranges.row(2), ranges.runner(bounds)).watermark for _ in range(2)]
    assert [(mark.version, mark.step, mark.steps) for mark in steps] == [(0, 1, 4), (0, 2, 4)]
    ranges.reshard(merge=True)
    for _ in range(8):
        outcome = ranges.run(ranges.row(1), ranges.runner(bounds))
        assert outcome.ok, outcome.error_msg
    assert outcome.watermark.version == 1
    ranges.assert_equal()


def test_a_range_that_cannot_read_changes_replaces_its_own_rows_alone(ranges: Ranges) -> None:
    ranges.reshard(merge=False)
    assert [ranges.run(row).data_type for row in ranges.rows] == [DataType.SNAPSHOT] * 2
    ranges.assert_equal()
    with closing(sqlite3.connect(ranges.file)) as db:
        db.execute("UPDATE rows SET v = 'kept'")
        db.execute("DELETE FROM iscp_watermarks WHERE key LIKE '%#2'")
        db.commit()
    assert ranges.run(ranges.row(2)).data_type is DataType.SNAPSHOT
    with closing(sqlite3.connect(ranges.file)) as db:
        hashes = [row[0] for row in db.execute("SELECT _key_hash FROM rows WHERE v = 'kept'")]
    assert hashes
    assert all(key_ranges.holds(3, each) for each in hashes)


@pytest.mark.parametrize("steps", in_full([8, 14]))
@pytest.mark.parametrize("seed", in_full([1, 2]))
def test_whatever_is_split_merged_killed_and_late_all_is_applied_once(ranges: Ranges, seed: int, steps: int) -> None:
    draw, pipeline = random.Random(seed), ranges.pipeline
    gone: list[JobRow] = []
    for number in range(steps):
        _change(draw, pipeline, number)
        row = draw.choice(ranges.rows)
        if draw.random() < 0.6:
            there, before = ranges.book.ranges(ranges.key.table_id), ranges.rows
            merge = len(there) > 1 and draw.random() < 0.5
            ranges.reshard(merge, 0 if merge or len(there) > 3 else draw.choice(there))
            gone += [each for each in before if each not in ranges.rows]
        match draw.randrange(4):
            case 0:  # dies at its commit, or after it
                point = draw.choice(["commit.before", "report.before"])
                if row in ranges.rows:
                    ranges.run(row, ranges.runner(failing={point: _die}))
            case 1 if gone:  # what was split or merged since commits late, before or after what came of it
                late = draw.choice(gone)
                ranges.run(late, told=False)
            case 2 if gone:  # and has its changes in hand meanwhile
                late, other = draw.choice(gone), draw.choice(ranges.rows)
                meanwhile = {"read.after": partial(ranges.run, other)}
                ranges.run(late, ranges.runner(failing=meanwhile), told=False)
            case _:
                ranges.run(draw.choice(ranges.rows))
    ranges.finish()
    ranges.assert_equal()
    for row in _fenced(ranges, gone):
        assert ranges.run(row, told=False).error_code == ErrorCode.SUPERSEDED


def _change(draw: random.Random, pipeline: Pipeline, number: int) -> None:
    ids = [draw.randrange(80) for _ in range(draw.randrange(1, 12))]
    if draw.random() < 0.3:
        pipeline.delete(f"id IN ({', '.join(map(str, ids))})")
    else:
        pipeline.upsert(sorted(set(ids)), f"v{number}")


def _fenced(ranges: Ranges, gone: Sequence[JobRow]) -> list[JobRow]:
    """Former rows some of whose keys are of a range by now that has committed."""
    records = ranges.records()
    done = [row for row in ranges.rows if (of := records.get(str(row.key.range_id))) and of.job_id == row.job_id]
    return [each for each in gone if any(key_ranges.overlaps(each.key.range_id, row.key.range_id) for row in done)][:3]


def _die() -> None:
    raise EngineError("died")
