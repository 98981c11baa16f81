"""What iterations say that they have cost, with the real Spark, Delta and Lance."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.model.job.iteration import DataType, JobOutcome, Usage

from .conftest import BOTH_WAYS, ROWS, Pipeline
from .feeding import Feed
from .indexing import Indexing, documents

pytestmark = pytest.mark.spark


def measured(run: Callable[[], JobOutcome]) -> tuple[JobOutcome, Usage]:
    """Run one iteration: the parts of its job's work sum up to no more than all that it took."""
    began_s = time.monotonic()
    outcome = run()
    took_s = time.monotonic() - began_s
    usage = outcome.usage
    assert outcome.ok, outcome.error_msg
    assert usage is not None
    assert 0.0 < usage.work_s <= took_s
    assert min(usage.read_s, usage.compute_s, usage.commit_s) > 0.0, "work was done in each"
    assert (usage.rows_written, usage.wait_s, usage.retries) == (outcome.rows, 0.0, 0)
    return outcome, usage


def files_of(uri: str, version: int) -> set[Path]:
    """The files of one version of a Delta table."""
    return {Path(path) for path in DeltaTable(uri, version=version).file_uris()}


def bytes_added(uri: str) -> int:
    """The bytes of the files that the newest commit has added."""
    version = DeltaTable(uri).version()
    return sum(path.stat().st_size for path in files_of(uri, version) - files_of(uri, version - 1))


@BOTH_WAYS
def test_a_replica_is_built_and_follows(pipeline: Pipeline) -> None:
    job, target = pipeline.job("copy", key=("id",)), pipeline.target("copy")
    built, usage = measured(lambda: pipeline.run(job)[0])
    assert (built.data_type, usage.rows_read, usage.rows_written) == (DataType.SNAPSHOT, ROWS, ROWS)
    assert usage.bytes_read == sum(path.stat().st_size for path in files_of(pipeline.source, 0))
    assert usage.bytes_written == built.bytes == bytes_added(target)

    pipeline.upsert([1, 2, 90], "new")
    pipeline.delete("id = 3")
    tail, usage = measured(lambda: pipeline.run(job)[0])
    assert (tail.data_type, usage.rows_read, usage.rows_written) == (DataType.TAIL, 4, 4)
    assert usage.bytes_read > 0
    assert usage.bytes_written == tail.bytes == bytes_added(target)

    pipeline.insert([100, 101])
    appended, usage = measured(lambda: pipeline.run(job)[0])
    assert (appended.rows, usage.bytes_written) == (2, bytes_added(target))


def test_jobs_that_share_a_read_each_have_it(pipeline: Pipeline) -> None:
    jobs = [pipeline.job(name, key=("id",)) for name in ("x", "y", "z")]
    pipeline.build(*jobs)
    pipeline.upsert([1, 2], "new")
    outcomes = pipeline.run(*jobs)
    usages = [outcome.usage for outcome in outcomes if outcome.usage is not None]
    assert len({usage.bytes_read for usage in usages}) == 1
    assert [usage.rows_read for usage in usages] == [2] * 3
    assert min(usage.read_s for usage in usages) > 0.0


@BOTH_WAYS
def test_a_changefeed_is_built_and_follows(pipeline: Pipeline) -> None:
    feed = Feed(pipeline)
    _, usage = measured(feed.run)
    assert (usage.rows_read, usage.rows_written) == (ROWS, ROWS)
    assert usage.bytes_written > 0
    pipeline.upsert([1], "new")
    _, usage = measured(feed.run)
    assert (usage.rows_read, usage.rows_written) == (2, 2), "what it was, and what it is"
    assert usage.bytes_written > 0


@BOTH_WAYS
def test_an_index_is_built_and_follows(pipeline: Pipeline) -> None:
    indexing = Indexing(pipeline)
    job = indexing.job("fulltext")
    _, usage = measured(lambda: indexing.run(job)[0])
    assert usage.rows_read == usage.rows_written > 0
    indexing.upsert(documents([1, 2], turn=1))
    _, usage = measured(lambda: indexing.run(job)[0])
    assert (usage.rows_read, usage.rows_written) == (2, 2)
    assert usage.bytes_written > 0
