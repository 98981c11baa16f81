"""The log of a source that is damaged: never read as if it were whole, named by its file, right when it is restored."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.job.job_row import JobRow
from iscp.model.values.errors import ErrorCode
from tests.fakes.damages import CONTENT, Damage, delete, link_to_itself, replaced_by
from tests.integration.pipeline.conftest import Pipeline, rows

pytestmark = pytest.mark.spark

BUILT, CHECKPOINT = 3, 2
FULL = partial(pytest.param, marks=pytest.mark.full)


@pytest.fixture
def jobs(pipeline: Pipeline) -> tuple[JobRow, JobRow]:
    """One by key and one without, which have applied versions 0 to BUILT of a log with a checkpoint."""
    for number in range(BUILT):
        pipeline.insert([100 + number])
        if number + 1 == CHECKPOINT:
            DeltaTable(pipeline.source).create_checkpoint()
    jobs = pipeline.job("keyed", key=("id",)), pipeline.job("bare")
    assert all(outcome.ok for outcome in pipeline.run(*jobs))
    return jobs


def commit(pipeline: Pipeline, version: int) -> Path:
    return Path(pipeline.source, "_delta_log", f"{version:020d}.json")


def foreign(pipeline: Pipeline, version: int) -> Damage:
    """The commit of that version of another table."""
    other = Path(f"{pipeline.root}/other")
    if not other.exists():
        for number in range(BUILT + 30):
            write_deltalake(str(other), rows([number]), mode="append")
    return replaced_by(other / "_delta_log" / f"{version:020d}.json")


def suffer(pipeline: Pipeline, jobs: Sequence[JobRow], path: Path, damage: Damage, *, new_node: bool = False) -> str:
    """What the jobs said while the file was damaged (empty: they came to the newest version all the same).

    They have either applied all that there is, or said what is wrong; once it is restored, they apply all.
    """
    kept = path.read_bytes()
    damage(path)
    runner = pipeline.new_runner(pipeline.failpoints) if new_node else None
    outcomes = pipeline.run(*jobs, runner=runner)
    path.unlink(missing_ok=True)
    path.write_bytes(kept)
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome.ok:
            pipeline.assert_equal(job.key.job_name)
        else:
            assert 0 < outcome.error_code < ErrorCode.INTERNAL, (damage, outcome.error_msg)
            assert pipeline.source in outcome.error_msg, (damage, outcome.error_msg)
            assert len(outcome.error_msg) < 2_000
    for job, outcome in zip(jobs, pipeline.run(*jobs, runner=runner), strict=True):
        assert outcome.ok, (damage, outcome.error_msg)
        pipeline.assert_equal(job.key.job_name)
    return " ".join(outcome.error_msg for outcome in outcomes)


@pytest.mark.parametrize("pipeline", ["direct", FULL("spark")], indirect=True)
@pytest.mark.parametrize("place", [0, FULL(1)], ids=["the last", "one before it"])
def test_a_commit_that_is_outstanding(pipeline: Pipeline, jobs: tuple[JobRow, JobRow], place: int) -> None:
    version = BUILT
    for damage in (*CONTENT, link_to_itself):
        pipeline.insert([1_000 + version])
        pipeline.insert([2_000 + version])
        version += 2
        path = commit(pipeline, version - place)
        assert path.name in suffer(pipeline, jobs, path, damage), damage
    pipeline.insert([5_000])
    pipeline.insert([5_001])
    version += 2
    if place:
        assert "not contiguous" in suffer(pipeline, jobs, commit(pipeline, version - place), delete)
        pipeline.insert([6_000])
        pipeline.insert([6_001])
        version += 2
    path = commit(pipeline, version - place)
    assert "is not there" in suffer(pipeline, jobs, path, foreign(pipeline, version - place))


@pytest.mark.parametrize("new_node", [False, FULL(True)], ids=["same node", "new node"])
def test_the_commit_that_was_applied_last(pipeline: Pipeline, jobs: tuple[JobRow, JobRow], new_node: bool) -> None:
    version = BUILT
    for damage in (*CONTENT, link_to_itself):
        path = commit(pipeline, version)
        pipeline.insert([1_000 + version])
        version += 1
        assert path.name in suffer(pipeline, jobs, path, damage, new_node=new_node), damage
    for damage in (delete, foreign(pipeline, version + 1)):
        path = commit(pipeline, version)
        pipeline.insert([1_000 + version])
        version += 1
        assert suffer(pipeline, jobs, path, damage, new_node=new_node)


@pytest.mark.further  # each time: commits below, and checkpoints in tests/unit/delta/log
@pytest.mark.parametrize("name", [f"{CHECKPOINT:020d}.checkpoint.parquet", FULL("_last_checkpoint")])
def test_a_checkpoint(pipeline: Pipeline, jobs: tuple[JobRow, JobRow], name: str) -> None:
    """A node that has read the table before goes on without it; a node that opens the table has to read it."""
    path, version = Path(pipeline.source, "_delta_log", name), BUILT
    for damage in (*CONTENT, delete, link_to_itself):
        for new_node in (False, True):
            pipeline.insert([1_000 + version])
            version += 1
            suffer(pipeline, jobs, path, damage, new_node=new_node)
