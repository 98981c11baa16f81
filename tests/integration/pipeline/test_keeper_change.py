"""Targets of each kind go from a run to a cluster and back with their rows, whatever the former keeper is at."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.job.iteration import DataType, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import marked_job_id, spec_mark
from iscp.model.job.watermark_record import parse_record
from iscp.model.values.errors import ErrorCode
from iscp.schedule.runner import Runner
from tests.fakes.guards import ScriptedFailpoints
from tests.selection import in_full

from .conftest import DIRECT_IN_FULL, Pipeline, rows
from .feeding import Feed
from .indexing import Indexing, documents
from .test_dead_letters import assert_split

pytestmark = pytest.mark.spark

KEEPERS = pytest.mark.parametrize("run", in_full([False, True]))
"""Whether a run takes the target over from a cluster, or a cluster from a run: the code is the same."""


def of(row: JobRow, time: int, *, run: bool = False, full: bool = False) -> JobRow:
    """Return the job as one that was registered at this time, in a cluster or by a run."""
    mark = spec_mark(row.table_uri, row.spec.consumer)
    return row._replace(job_id=marked_job_id(f"{time:012x}", mark, run=run, full=full))


def known(row: JobRow, outcome: JobOutcome) -> JobRow:
    return row._replace(watermark=outcome.watermark, seq=outcome.seq)


class Interrupting:
    """A guard that calls `what` at its first check (port Guard)."""

    def __init__(self, what: Callable[[], object]) -> None:
        self._what: Callable[[], object] | None = what

    def check(self) -> None:
        what, self._what = self._what, None
        if what is not None:
            what()


def interrupted(pipeline: Pipeline, runner: Runner, row: JobRow, what: Callable[[], object]) -> JobOutcome:
    iteration = Iteration(1000, row.key.table_id, pipeline.source, (row,))
    (outcome,) = runner.run(iteration, Interrupting(what))
    return outcome


def kinds(pipeline: Pipeline, name: str) -> list[str]:
    """Return what each commit of a target was for, after those of the first build."""
    history = reversed(DeltaTable(pipeline.target(name)).history())
    found = [each.get("userMetadata", "") for each in history]
    return [text.partition('"kind":"')[2].partition('"')[0] for text in found][2:]


@KEEPERS
@DIRECT_IN_FULL
@pytest.mark.slow
def test_a_replica_goes_on_with_its_rows_and_those_beside_it(pipeline: Pipeline, run: bool) -> None:
    job = pipeline.job("copy", key=("id",))
    former, taker = of(job, 1, run=not run), of(job, 2, run=run)
    pipeline.insert([3], "again")
    assert_split(pipeline, job, first := pipeline.run(former)[0], dead=2)
    files = set(DeltaTable(pipeline.target("copy")).file_uris())
    pipeline.insert([60, 61])
    other = pipeline.new_runner(ScriptedFailpoints())
    outcome = pipeline.run(taker, runner=other)[0]
    assert_split(pipeline, job, outcome, dead=2)
    assert outcome.data_type is DataType.TAIL
    assert files <= set(DeltaTable(pipeline.target("copy")).file_uris()), "no row was written again"
    assert kinds(pipeline, "copy") == ["takeover", "tail"]
    assert pipeline.run(known(former, first))[0].error_code == ErrorCode.SUPERSEDED
    again = pipeline.run(known(taker, outcome), runner=other)[0]
    assert (again.ok, again.seq, kinds(pipeline, "copy")) == (True, outcome.seq, ["takeover", "tail"])
    pipeline.upsert([5], "later")
    back = pipeline.run(of(job, 3, run=not run))[0]
    assert_split(pipeline, job, back, dead=2)
    assert kinds(pipeline, "copy") == ["takeover", "tail", "takeover", "tail"]


def test_an_archive_goes_on_with_what_its_source_has_lost_and_is_not_built_where_others_have_written(
    pipeline: Pipeline,
) -> None:
    job = pipeline.job("log")
    assert pipeline.run(of(job, 1, run=True))[0].ok
    assert DeltaCatalog().describe(pipeline.target("log")).sink_job_id == of(job, 1, run=True).job_id
    pipeline.delete("id < 40")
    pipeline.insert([100])
    outcome = pipeline.run(of(job, 2))[0]
    assert outcome.ok, outcome.error_msg
    held = DeltaTable(pipeline.target("log")).to_pyarrow_table()["id"].to_pylist()
    assert sorted(held) == [*range(50), 100]
    write_deltalake(pipeline.target("log"), rows([7], "of others"), mode="append")
    version = DeltaTable(pipeline.target("log")).version()
    refused = pipeline.run(of(job, 3, run=True))[0]
    assert refused.error_code == ErrorCode.TARGET_UNUSABLE
    assert "append-only" in refused.error_msg
    assert DeltaTable(pipeline.target("log")).version() == version


@KEEPERS
def test_what_the_former_keeper_commits_late_fails(pipeline: Pipeline, run: bool) -> None:
    job = pipeline.job("copy", key=("id",))
    former, taker = of(job, 1, run=not run), of(job, 2, run=run)
    former = known(former, pipeline.run(former)[0])
    pipeline.upsert([1, 70], "once")
    other = pipeline.new_runner(ScriptedFailpoints())
    taken: list[JobOutcome] = []
    pipeline.failpoints.once("commit.before", lambda: taken.extend(pipeline.run(taker, runner=other)))
    late = pipeline.run(former)[0]
    assert taken[0].ok, taken[0].error_msg
    assert (late.error_code, taker.job_id in late.error_msg) == (ErrorCode.SUPERSEDED, True)
    assert kinds(pipeline, "copy") == ["takeover", "tail"]
    pipeline.assert_equal("copy")


@KEEPERS
def test_what_the_former_keeper_commits_before_is_gone_on_with(pipeline: Pipeline, run: bool) -> None:
    job = pipeline.job("copy", key=("id",))
    former, taker = of(job, 1, run=not run), of(job, 2, run=run)
    former = known(former, pipeline.run(former)[0])
    pipeline.upsert([1, 70], "once")
    other = pipeline.new_runner(ScriptedFailpoints())
    outcome = interrupted(pipeline, other, taker, lambda: pipeline.run(former))
    assert outcome.ok, outcome.error_msg
    assert kinds(pipeline, "copy") == ["tail", "takeover"]
    pipeline.assert_equal("copy")


def test_a_run_that_dies_at_its_first_commit_after_it_took_over_goes_on_there(pipeline: Pipeline) -> None:
    job = pipeline.job("copy", key=("id",))
    assert pipeline.run(of(job, 1))[0].ok
    pipeline.upsert([1, 70], "once")

    def die() -> None:
        raise RuntimeError("killed")

    dying = ScriptedFailpoints()
    dying.once("commit.before", die)
    taker = of(job, 2, run=True)
    assert not pipeline.run(taker, runner=pipeline.new_runner(dying))[0].ok
    assert kinds(pipeline, "copy") == ["takeover"]
    assert pipeline.run(taker)[0].ok
    assert kinds(pipeline, "copy") == ["takeover", "tail"]
    pipeline.assert_equal("copy")


@KEEPERS
def test_a_feed_goes_on_in_its_order_and_one_that_was_split_is_compared(pipeline: Pipeline, run: bool) -> None:
    feed = Feed(pipeline)
    former, taker = of(feed.row(), 1, run=not run), of(feed.row(), 2, run=run)
    first = feed.run(former, told=False)
    pipeline.upsert([1, 70], "once")
    before = len(feed.changes())
    outcome = feed.run(taker, told=False)
    assert (outcome.ok, outcome.data_type) == (True, DataType.TAIL), outcome.error_msg
    assert len([each for each in feed.changes() if not each["net"]]) == len(feed.changes()) - before
    feed.assert_equal()
    late = feed.run(known(former, first), told=False)
    assert late.error_code == ErrorCode.SUPERSEDED
    idle = of(feed.row(), 3, run=not run)
    assert (feed.run(idle, told=False).ok, feed.run(known(taker, outcome), told=False).ok) == (True, False)


def test_what_a_former_keeper_of_a_feed_has_on_its_way_fails(pipeline: Pipeline) -> None:
    feed = Feed(pipeline)
    former, taker = of(feed.row(), 1), of(feed.row(), 2, run=True)
    former = known(former, feed.run(former, told=False))
    pipeline.upsert([1, 70], "once")
    taken: list[JobOutcome] = []
    runner = feed.runner(commit_before=lambda: taken.append(feed.run(taker, told=False)))
    late = feed.run(former, runner=runner, told=False)
    assert (taken[0].ok, late.error_code) == (True, ErrorCode.SUPERSEDED)
    feed.assert_equal()
    pipeline.upsert([2], "more")
    before_it = interrupted(pipeline, feed.runner(), of(feed.row(), 4), lambda: feed.run(taker, told=False))
    assert before_it.ok, before_it.error_msg
    feed.assert_equal()


def test_a_feed_of_several_ranges_is_compared_with_its_source(pipeline: Pipeline) -> None:
    feed = Feed(pipeline)
    whole = of(feed.row(), 1)
    assert feed.run(whole, told=False).ok
    part = whole._replace(key=whole.key.of_range(2), job_id=f"{whole.job_id}.0002", origin=whole.job_id)
    pipeline.upsert([1, 70], "once")
    assert feed.run(part, told=False).ok
    outcome = feed.run(of(feed.row(), 2, run=True), told=False)
    assert (outcome.ok, outcome.data_type) == (True, DataType.SNAPSHOT), outcome.error_msg
    feed.assert_equal()


@pytest.mark.parametrize("kind", in_full(["search", "fulltext", "vector"]))
def test_an_index_goes_on_without_embedding_anything_again(pipeline: Pipeline, kind: str) -> None:
    indexing = Indexing(pipeline)
    job = indexing.job(kind)
    former, taker = of(job, 1), of(job, 2, run=True)
    first = indexing.run(former)[0]
    embedded = indexing.embedded()
    indexing.forget_vectors()
    indexing.upsert(documents([3, 50], turn=1))
    outcome = indexing.run(taker, runner=indexing.other_runner())[0]
    assert (outcome.ok, outcome.data_type) == (True, DataType.TAIL), outcome.error_msg
    (record,) = indexing.assert_equal(job).head.records.values()
    assert (parse_record(record).job_id, parse_record(record).seq) == (taker.job_id, first.seq + 2)
    assert indexing.embedded() - embedded <= 2
    assert indexing.run(known(former, first))[0].error_code == ErrorCode.SUPERSEDED
    rebuilt = indexing.run(of(job, 3, full=True))[0]
    assert (rebuilt.ok, rebuilt.data_type) == (True, DataType.SNAPSHOT)


@pytest.mark.parametrize("late", [True, False])
def test_one_commit_of_an_index_wins_between_its_keepers(pipeline: Pipeline, late: bool) -> None:
    indexing = Indexing(pipeline)
    pipeline.source = indexing.source
    job = indexing.job("fulltext")
    former, taker = of(job, 1, run=True), of(job, 2)
    former = known(former, indexing.run(former)[0])
    indexing.upsert(pa.concat_tables([documents([3], turn=1), documents([50])]))
    other, outcomes = indexing.other_runner(), []
    if late:
        indexing.failpoints.once("commit.before", lambda: outcomes.extend(indexing.run(taker, runner=other)))
        assert indexing.run(former)[0].error_code == ErrorCode.SUPERSEDED
    else:
        outcomes = [interrupted(pipeline, other, taker, lambda: indexing.run(former))]
    assert outcomes[0].ok, outcomes[0].error_msg
    indexing.assert_equal(job)
