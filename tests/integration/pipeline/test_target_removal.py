"""The last iteration of a job that ends with its target: real tables, without a JVM."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from iscp.consumers.view.view_kind import ViewKind
from iscp.delta.log.commits import APP_ID
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.sink.sink_position import tag_json
from iscp.model.job.iteration import Bounds, Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import DIRECT_BYTES_MAX
from iscp.model.values.errors import ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag, DeletionOrder
from iscp.schedule.runner import Runner
from iscp.spark.deferred_spark import DeferredSpark, SparkAccess
from tests.fakes.guards import OpenGuard, ScriptedFailpoints

from .conftest import Pipeline, opened


def never() -> SparkAccess:
    raise AssertionError("Spark was started")


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """A pipeline whose Spark fails the test."""
    return Pipeline(tmp_path, DeferredSpark(never, local=True), DIRECT_BYTES_MAX)


def remove(pipeline: Pipeline, job: JobRow, runner: Runner | None = None) -> JobOutcome:
    iteration = Iteration(99, job.key.table_id, pipeline.source, (job,), purpose=Purpose.DELETE)
    (outcome,) = (runner or pipeline.runner).run(iteration, OpenGuard())
    return outcome


def built(pipeline: Pipeline) -> JobRow:
    job = pipeline.job("copy", key=("id",))
    (outcome,) = pipeline.run(job)
    assert outcome.error_msg == ""
    return job._replace(watermark=outcome.watermark, seq=outcome.seq)


def test_the_target_is_gone_and_the_source_as_it_was(pipeline: Pipeline) -> None:
    job = built(pipeline)
    shutil.rmtree(pipeline.source)
    outcome = remove(pipeline, job)
    assert (outcome.ok, outcome.seq, outcome.watermark, outcome.warning) == (True, job.seq + 1, job.watermark, "")
    assert not Path(pipeline.target("copy")).exists()
    assert remove(pipeline, job).ok, "whoever did not hear of it does it again"


def test_what_was_under_way_for_the_job_comes_to_nothing(pipeline: Pipeline) -> None:
    """A node that was given up on still has its commit to make when the next one deletes the target."""
    job = built(pipeline)
    pipeline.upsert([1, 2], "new")
    points = ScriptedFailpoints()
    late = pipeline.new_runner(points)
    dying = ScriptedFailpoints()

    def die() -> None:
        raise KeyboardInterrupt

    dying.once("deletion.began", die)

    def delete_meanwhile() -> None:
        with pytest.raises(KeyboardInterrupt):
            remove(pipeline, job, pipeline.new_runner(dying))

    points.once("commit.before", delete_meanwhile)
    (outcome,) = pipeline.run(job, runner=late)
    assert outcome.error_code == ErrorCode.SUPERSEDED
    assert opened(pipeline.target("copy")).to_pyarrow_table().num_rows == 0
    assert remove(pipeline, job).ok
    assert not Path(pipeline.target("copy")).exists()


@pytest.mark.parametrize("died", [False, True])
def test_a_later_registration_of_the_target_keeps_it(pipeline: Pipeline, died: bool) -> None:
    job = built(pipeline)
    later = pipeline.job("copy", registration=2, key=("id",))
    if died:
        points = ScriptedFailpoints()
        points.once("deletion.began", lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            remove(pipeline, job, pipeline.new_runner(points))
    (outcome,) = pipeline.run(later)
    assert outcome.error_msg == ""
    with pytest.raises(PermanentError, match=r"kept last by the registration copy-2, so that nothing was deleted"):
        remove(pipeline, job)
    pipeline.assert_equal("copy")


def test_a_target_outside_of_the_accounts_roots_stays(pipeline: Pipeline) -> None:
    job = built(pipeline)

    def refuse(row: JobRow) -> None:
        raise InvalidRequest("lies below no root", field="target", code=ErrorCode.OUTSIDE_ROOTS)

    ports = replace(pipeline.new_ports(pipeline.failpoints), require_places=refuse)
    with pytest.raises(InvalidRequest, match="lies below no root"):
        remove(pipeline, job, Runner(ports, Bounds()))
    pipeline.assert_equal("copy")


def stored(uri: str, job_id: str) -> None:
    tag = CommitTag(1, job_id, "t-1", -1, Watermark(0, 1.0), 1, -1, "try-1", "view_state")
    properties = CommitProperties({"userMetadata": tag_json(tag)}, app_transactions=[Transaction(APP_ID, 1)])
    write_deltalake(uri, pa.table({"c0": [1]}), commit_properties=properties)


@pytest.mark.parametrize(
    ("beside", "goes"),
    [("_view_state_2", True), ("_view_state", True), ("_dead_letter", False)],
)
def test_what_is_stored_beside_a_view_goes_with_it(pipeline: Pipeline, beside: str, goes: bool) -> None:
    job = built(pipeline)
    target = pipeline.target("copy")
    stored(target + beside, job.job_id)
    ViewKind().delete_target(DeletionOrder(job, 1, OpenGuard()), pipeline.new_environment(pipeline.failpoints))
    assert (Path(target).exists(), Path(target + beside).exists()) == (False, not goes)


@pytest.mark.parametrize("key", [("id",), ()])
def test_dead_letters_go_with_a_replica_by_key(pipeline: Pipeline, key: tuple[str, ...]) -> None:
    job = pipeline.job("copy", key=key)
    assert pipeline.run(job)[0].error_msg == ""
    stored(pipeline.target("copy") + "_dead_letter", job.job_id)
    assert remove(pipeline, job).ok
    assert DeltaTable.is_deltatable(pipeline.target("copy") + "_dead_letter") is not bool(key)


def test_a_kind_that_deletes_nothing_says_so(pipeline: Pipeline) -> None:
    job = built(pipeline)

    class Keeping(ViewKind):
        delete_target = None  # type: ignore[assignment]

    kinds: Callable[[str], ViewKind] = lambda name: Keeping()  # noqa: E731
    with pytest.raises(PermanentError, match="a consumer view deletes no target"):
        remove(pipeline, job, pipeline.new_runner(pipeline.failpoints, kinds=kinds))
    assert DeltaSink(pipeline.target("copy"), pipeline.failpoints).position(job).seq == job.seq
