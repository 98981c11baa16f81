"""What lands on a source while it is built is kept, and what repairs it: VACUUM and log cleanup then lose nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from iscp.cluster.builds.builder_loop import plan_of
from iscp.delta.sink.staging import FOLDER
from iscp.delta.source.change_source import DeltaProbe
from iscp.model.build.build_task import BuildPlan, StagingBatch, StagingTask
from iscp.model.job.iteration import Bounds, DataType, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import ProbeState
from iscp.model.values.errors import Canceled, PlanOutdated
from iscp.model.values.progress import NOTHING
from iscp.ports.consumer import TablePlace
from iscp.schedule.probe_pool import probe_source
from tests.fakes.build_driver import BuildDriver, after
from tests.fakes.build_program import kind_of
from tests.fakes.builds import FakeBatchGuard
from tests.fakes.guards import OpenGuard
from tests.selection import in_full

from .conftest import SPARK_IN_FULL, Pipeline, rows
from .test_builds import Cluster, add_files
from .test_builds_of_changefeeds import changes, feed_job, without_ulids

pytestmark = pytest.mark.spark

FIRST = 5
"""The version of which a build begins."""


def land(pipeline: Pipeline) -> int:
    """Commits of all kinds that leave the files of before alone; the newest version."""
    pipeline.insert(range(1_000, 1_040))
    pipeline.upsert(range(1_010, 1_050), "upserted")
    DeltaTable(pipeline.source).update({"v": "'updated'"}, predicate="id >= 1000 AND id < 1005")
    pipeline.delete("id >= 1030 AND id < 1045")
    DeltaTable(pipeline.source).alter.add_columns([Field("x", PrimitiveType("string"))])
    late = rows(range(1_060, 1_075), "late").append_column("x", [["x"] * 15])
    write_deltalake(pipeline.source, late, mode="append")
    return int(DeltaTable(pipeline.source).version())


def vacuum(pipeline: Pipeline) -> None:
    """All that is not in the newest version is gone, and the change data of every one."""
    DeltaTable(pipeline.source).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    for file in Path(pipeline.source, "_change_data").rglob("*.parquet"):
        file.unlink()


def clean_log(pipeline: Pipeline, version: int) -> None:
    table = DeltaTable(pipeline.source)
    table.create_checkpoint()
    for each in range(version):
        Path(pipeline.source, "_delta_log", f"{each:020d}.json").unlink(missing_ok=True)


def kept_folders(pipeline: Pipeline) -> list[str]:
    return sorted((path.parent.name for path in Path(str(pipeline.root), FOLDER).rglob("manifest.json")), key=int)


def replica(pipeline: Pipeline) -> JobRow:
    """One of which no column is to come: it would have the replica compare."""
    return pipeline.job("target", key=("id",), columns=("id", "v", "g"))


def batch(pipeline: Pipeline, jobs: Sequence[JobRow], since: int, until: int) -> StagingBatch:
    plans: list[BuildPlan] = [plan for row in jobs if (plan := plan_of(row)) is not None]
    return StagingBatch(StagingTask("s-1", jobs[0].key.table_id, pipeline.source, since, until, "n1"), tuple(plans))


def begun(cluster: Cluster, *jobs: JobRow) -> BuildDriver:
    add_files(cluster.pipeline)
    driver = cluster.driver(*jobs)
    assert [outcome.build.version for outcome in driver.iterate() if outcome.build] == [FIRST] * len(jobs)
    return driver


def tail(cluster: Cluster, row: JobRow, newest: int) -> list[JobOutcome]:
    """Iterations until all is applied."""
    outcomes: list[JobOutcome] = []
    while row.watermark.version < newest:
        (outcome,) = cluster.pipeline.run(row, runner=cluster.runner)
        assert outcome.ok, outcome.error_msg
        assert outcome.watermark.version > row.watermark.version
        outcomes.append(outcome)
        row = after(row, outcome)
    return outcomes


@SPARK_IN_FULL
def test_vacuum_and_log_cleanup_of_all_that_is_unread_lose_nothing(pipeline: Pipeline) -> None:
    """A feed, to which a comparison with all rows would be other changes, says what one says that read the source."""
    cluster = Cluster(pipeline, kinds=kind_of)
    driver = begun(cluster, feed_job(pipeline, "feed"), replica(pipeline))
    control = pipeline.new_runner(pipeline.failpoints, kinds=kind_of)
    (first,) = pipeline.run(feed_job(pipeline, "control"), runner=control, to=FIRST)
    newest = land(pipeline)
    pipeline.run(after(first.row, first), runner=control)
    work = batch(pipeline, driver.rows, FIRST, newest)
    size = cluster.nodes[0].build(work, OpenGuard())
    assert size.rows > 100
    assert size.bytes > 0
    vacuum(pipeline)
    assert cluster.nodes[1].build(work, OpenGuard()) == size, "what is kept is not kept again"
    for range_id in driver.waiting:
        assert driver.work(range_id) is None
    assert [outcome.watermark.version for outcome in driver.iterate()] == [FIRST, FIRST]
    clean_log(pipeline, newest)
    for row in driver.rows:
        assert {outcome.data_type for outcome in tail(cluster, row, newest)} == {DataType.TAIL}
    assert without_ulids(changes(pipeline, "feed")) == without_ulids(changes(pipeline, "control"))
    pipeline.assert_equal("target")
    assert kept_folders(pipeline) == [str(version) for version in range(FIRST + 1, newest + 1)], "one copy for all jobs"
    assert cluster.nodes[2].build(batch(pipeline, driver.rows, newest, newest), OpenGuard()) == NOTHING
    assert list(Path(str(pipeline.root), FOLDER).iterdir()) == []


@pytest.mark.further  # each time: who is stopped, below, and a node that dies in test_builds.py
@SPARK_IN_FULL
@pytest.mark.parametrize("point", in_full(["keep.before", "keep.staged", "keep.counted"], but=["keep.staged"]))
def test_a_node_that_ends_while_it_keeps_leaves_all_of_a_commit_or_nothing(pipeline: Pipeline, point: str) -> None:
    cluster = Cluster(pipeline)
    driver = begun(cluster, replica(pipeline))
    newest = land(pipeline)
    work = batch(pipeline, driver.rows, FIRST, newest)

    def ends() -> None:
        raise Canceled("the node ends")

    cluster.failpoints.once(point, ends)
    with pytest.raises(Canceled):
        cluster.nodes[0].build(work, OpenGuard())
    assert len(kept_folders(pipeline)) == (point == "keep.counted")
    assert cluster.nodes[1].build(work, OpenGuard()).rows > 100
    vacuum(pipeline)
    driver.finish()
    assert {outcome.data_type for outcome in tail(cluster, driver.rows[0], newest)} == {DataType.TAIL}
    pipeline.assert_equal("target")


@SPARK_IN_FULL
def test_a_commit_that_is_gone_before_it_is_kept_has_the_build_begun_again(pipeline: Pipeline) -> None:
    cluster = Cluster(pipeline)
    driver = begun(cluster, replica(pipeline))
    newest = land(pipeline)
    vacuum(pipeline)
    behind = int(DeltaTable(pipeline.source).version())
    with pytest.raises(PlanOutdated, match="version 6"):
        cluster.nodes[0].build(batch(pipeline, driver.rows, FIRST, newest), OpenGuard())
    (again,) = driver.iterate()
    assert again.build is not None
    assert again.build.version == behind
    assert again.warning.startswith(f"the build was begun again at version {behind}: version {FIRST} of the source, or")
    assert cluster.nodes[0].build(batch(pipeline, driver.rows, FIRST, newest), OpenGuard()).rows < 100, (
        "nobody needs it"
    )
    driver.finish()
    assert driver.rows[0].watermark.version == behind
    pipeline.assert_equal("target")


@SPARK_IN_FULL
@pytest.mark.parametrize("damage", in_full(["manifest", "file", "content"], but=["file"]))
@pytest.mark.slow
def test_what_is_damaged_does_not_count(pipeline: Pipeline, damage: str) -> None:
    """The job compares with all rows, as it does where nothing was kept."""
    cluster = Cluster(pipeline)
    driver = begun(cluster, replica(pipeline))
    newest = land(pipeline)
    cluster.nodes[0].build(batch(pipeline, driver.rows, FIRST, newest), OpenGuard())
    (manifest,) = Path(str(pipeline.root), FOLDER).glob(f"*/{FIRST + 1}/manifest.json")
    if damage == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:-20])
    elif damage == "content":
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "rows": 39}))
    else:
        next(manifest.parent.rglob("*.parquet")).write_bytes(b"PAR1")
    vacuum(pipeline)
    driver.finish()
    (outcome,) = tail(cluster, driver.rows[0], newest)
    assert outcome.data_type is DataType.DIFFERENCE
    pipeline.assert_equal("target")


@pytest.mark.further  # each time: recreated sources in test_source_events.py
@SPARK_IN_FULL
def test_a_table_that_is_there_again_is_not_read_from_what_was_kept_of_the_one_before(pipeline: Pipeline) -> None:
    cluster = Cluster(pipeline)
    driver = begun(cluster, replica(pipeline))
    pipeline.insert(range(1_000, 1_010))
    cluster.nodes[0].build(batch(pipeline, driver.rows, FIRST, FIRST + 1), OpenGuard())
    pipeline.sql(f"RESTORE TABLE SOURCE TO VERSION AS OF {FIRST}")
    work = batch(pipeline, driver.rows, FIRST, FIRST + 2)
    restored = cluster.nodes[0].build(work, OpenGuard())
    assert restored.rows == 20, "what is brought back by a repair is kept like any other change"
    commit = Path(pipeline.source, "_delta_log", f"{FIRST + 2:020d}.json")
    at_ms = json.loads(commit.read_text().splitlines()[0])["commitInfo"]["timestamp"]
    commit.write_text(commit.read_text().replace(str(at_ms), str(at_ms + 60_000)))
    (before,) = Path(str(pipeline.root), FOLDER).glob(f"*/{FIRST + 2}/manifest.json")
    said = before.read_text()
    cluster.nodes[0].build(work, OpenGuard())
    assert before.read_text() != said, "it is another commit of that version"


RESTORED = 2
"""Rows are brought back that a later version lacks, others are gone, and one has its former value again."""


def restore_by_spark(pipeline: Pipeline) -> None:
    pipeline.sql(f"RESTORE TABLE SOURCE TO VERSION AS OF {RESTORED}")


def restore_by_delta_rs(pipeline: Pipeline) -> None:
    DeltaTable(pipeline.source).restore(RESTORED)


def delete_again(pipeline: Pipeline) -> None:
    """What was loaded twice, say, as somebody marks it who repairs a table by hand."""
    marked = CommitProperties(custom_metadata={"userMetadata": '{"iscp.repair": true}'})
    DeltaTable(pipeline.source).delete("id >= 3", commit_properties=marked)


@SPARK_IN_FULL
@pytest.mark.parametrize(
    "repair",
    in_full([restore_by_spark, restore_by_delta_rs, delete_again], but=[restore_by_spark]),
    ids=lambda repair: repair.__name__,
)
@pytest.mark.slow
def test_vacuum_right_after_a_repair_was_probed_and_kept_loses_nothing(
    pipeline: Pipeline, repair: Callable[[Pipeline], None]
) -> None:
    """Of a table whose jobs all tail, with an unread commit before it. The feed is as one that read the source."""
    cluster = Cluster(pipeline, kinds=kind_of)
    driver = begun(cluster, feed_job(pipeline, "feed"), replica(pipeline))
    driver.finish()
    control = pipeline.new_runner(pipeline.failpoints, kinds=kind_of)
    (read,) = pipeline.run(feed_job(pipeline, "control"), runner=control)
    seen = probe_source(DeltaProbe(), pipeline.source, ProbeState(FIRST))
    pipeline.upsert(range(5), "unread")
    repair(pipeline)
    probed = probe_source(DeltaProbe(), pipeline.source, seen)
    assert (probed.version, probed.repair) == (FIRST + 2, FIRST + 2)
    task = StagingTask("s-1", driver.rows[0].key.table_id, pipeline.source, FIRST, probed.repair, "n1")
    assert cluster.nodes[0].build(StagingBatch(task, ()), OpenGuard()).rows > 0
    pipeline.run(after(read.row, read), runner=control)
    vacuum(pipeline)
    clean_log(pipeline, int(DeltaTable(pipeline.source).version()))
    for row in driver.rows:
        assert {outcome.data_type for outcome in tail(cluster, row, probed.repair)} == {DataType.TAIL}
    assert without_ulids(changes(pipeline, "feed")) == without_ulids(changes(pipeline, "control"))
    pipeline.assert_equal("target")
    cluster.nodes[1].build(StagingBatch(task._replace(after=task.until), ()), OpenGuard())
    assert list(Path(str(pipeline.root), FOLDER).iterdir()) == []


@SPARK_IN_FULL
def test_columns_that_a_commit_takes_away_are_kept_with_it_and_not_said_of_others(pipeline: Pipeline) -> None:
    """The release before knows nothing of them, and reads what is kept of all other commits."""
    ports, version = pipeline.new_ports(pipeline.failpoints), DeltaTable(pipeline.source).version()
    pipeline.sql("ALTER TABLE SOURCE ADD COLUMNS (more STRUCT<x: INT>)")
    pipeline.sql(f"RESTORE TABLE SOURCE TO VERSION AS OF {version}")
    table, lost = TablePlace(str(DeltaTable(pipeline.source).metadata().id), pipeline.source), {}
    for each in (version + 1, version + 2):
        with pipeline.engine.session() as session:
            ports.retained.retain(session, table, each, OpenGuard())
        (manifest,) = Path(str(pipeline.root), FOLDER).glob(f"*/{each}/manifest.json")
        span = pipeline.new_ports(pipeline.failpoints).retained.resolve(table, each - 1, each, Bounds())
        assert span is not None
        lost[each] = json.loads(manifest.read_text())["span"].get("lost"), span.lost
    assert lost == {version + 1: (None, ()), version + 2: (["more"], ("more",))}


def test_who_is_stopped_keeps_nothing_and_deletes_nothing(pipeline: Pipeline) -> None:
    cluster = Cluster(pipeline)
    driver = begun(cluster, replica(pipeline))
    pipeline.insert(range(1_000, 1_010))
    guard = FakeBatchGuard()
    cluster.nodes[0].build(batch(pipeline, driver.rows, FIRST, FIRST + 1), guard)
    guard.cancel()
    with pytest.raises(Canceled):
        cluster.nodes[0].build(batch(pipeline, driver.rows, FIRST + 1, FIRST + 1), guard)
    assert kept_folders(pipeline) == [str(FIRST + 1)]
