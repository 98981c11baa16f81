"""A store with the S3 API, without Spark: commits, probes, and a log that was recreated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import obstore
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError
from obstore.store import from_url

from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.delta.joblog.fenced_table import FAILPOINT_COMMITTED
from iscp.delta.log.commits import (
    APP_ID,
    commit_file,
    commit_stamp,
    log_of,
    newest_version,
    read_commit,
    table_exists,
)
from iscp.delta.sink.bag_write import VECTORS, BagWriter
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.sink.sink_position import tag_json
from iscp.delta.sink.staging import FileStagedRanges
from iscp.delta.sink.target_write import create_target
from iscp.delta.source.change_source import DeltaProbe
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.build.build_task import BuildId
from iscp.model.job.job_row import LogEntry
from iscp.model.sql.sql_names import WEIGHT
from iscp.model.values.errors import Conflict, NotOwner, OutcomeUnknown, PlanOutdated, StorageError, TableNotFound
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag, DeletionOrder, StagedState
from iscp.ports.source import Rows
from iscp.storage import files
from iscp.storage.table_files import read_note, write_note
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.fakes.log_program import job
from tests.fakes.s3 import FakeS3, asking, s3_server


@pytest.fixture
def uri(s3: FakeS3, request: pytest.FixtureRequest) -> str:
    return s3.uri(f"tables/{request.node.name}")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_commits_are_read_and_listed(uri: str) -> None:
    assert not table_exists(uri)
    assert read_commit(uri, 0) is None
    assert commit_stamp(uri, 0) is None
    with pytest.raises(TableNotFound):
        newest_version(uri)
    write_deltalake(uri, rows(1, 2))
    write_deltalake(uri, rows(3), mode="append")
    DeltaTable(uri).create_checkpoint()
    assert newest_version(uri) == 1
    commit = read_commit(uri, 1)
    assert commit is not None
    assert (commit.operation, commit.rows_added, commit.only_adds) == ("WRITE", 1, True)
    assert commit_stamp(uri, 1) == commit_stamp(uri, 1) != commit_stamp(uri, 0)
    assert DeltaCatalog(s3=True).describe(uri.replace("s3://", "s3a://")).uri == uri


def test_delta_rs_commits_a_version_once(uri: str) -> None:
    write_deltalake(uri, rows(1))
    late = DeltaTable(uri)
    write_deltalake(uri, rows(2), mode="append")
    with pytest.raises(CommitFailedError):
        late.create_write_transaction(
            [], "append", late.schema(), commit_properties=CommitProperties(max_commit_retries=0)
        )


def test_the_probe_follows_a_table_and_sees_that_it_was_recreated(uri: str) -> None:
    probe = DeltaProbe()
    with pytest.raises(TableNotFound):
        probe.first_probe(uri)
    write_deltalake(uri, rows(1))
    seen = probe.first_probe(uri)
    assert probe.probe(uri, seen) is seen
    write_deltalake(uri, rows(2), mode="append")
    moved = probe.probe(uri, seen)
    assert moved.version == 1
    files.remove_tree(uri)
    write_deltalake(uri, rows(1))
    write_deltalake(uri, rows(2), mode="append")
    anew = probe.probe(uri, moved)
    assert (anew.version, anew.stamp == moved.stamp) == (1, False)


def test_a_repair_is_found_by_the_beginning_of_its_commit(uri: str) -> None:
    for number in range(3):
        write_deltalake(uri, rows(number), mode="append")
    DeltaTable(uri).restore(0)
    assert DeltaProbe().newest_repair(uri, 0, 3) == 3
    assert DeltaProbe().newest_repair(uri, 0, 2) == 0
    whole = files.read(commit_file(uri, 3))[0]
    assert files.read_head(commit_file(uri, 3), 100) == whole[:100]
    assert files.read_head(commit_file(uri, 3), 1 << 20) == whole


def test_removing_a_directory_spares_what_lies_beside_it(s3: FakeS3, uri: str) -> None:
    write_deltalake(uri, rows(1))
    beside = f"{log_of(uri)}2/x"
    obstore.put(from_url(f"s3://{s3.bucket}"), beside.removeprefix(f"s3://{s3.bucket}/"), b"x")
    files.remove_tree(log_of(uri))
    assert not files.exists(commit_file(uri, 0))
    assert files.read(beside)[0] == b"x"


def test_the_job_log_lies_there_too(uri: str) -> None:
    """Terms, rows and compaction; of two owners the earlier one is deposed."""
    early = DeltaJobLog(uri, SystemClock(), EnvironmentFailpoints())
    assert early.claim_term() == 1
    early.append([LogEntry(job(0), "r0")])
    late = DeltaJobLog(uri, SystemClock(), EnvironmentFailpoints())
    assert late.claim_term() == 2
    with pytest.raises(NotOwner):
        early.append([LogEntry(job(1), "r1")])
    late.append([LogEntry(job(2), "r2")])
    late.compact(late.load())
    assert sorted(row.key.job_name for row in late.load()) == ["j0", "j2"]


@pytest.mark.parametrize("lands", [False, True])
def test_a_commit_that_times_out_and_lands_later_is_not_said_to_be_nothing(s3: FakeS3, lands: bool) -> None:
    """Whether or not it lands, its repetition makes one of it."""
    uri = s3.uri(f"tables/late-commit-{lands}")
    store, steps, entries = from_url(f"{uri}/iscp_log/_delta_log"), ScriptedFailpoints(), [LogEntry(job(1), "r1")]
    joblog = DeltaJobLog(uri, SystemClock(), steps)
    joblog.claim_term()
    name, held = f"{joblog.version + 1:020d}.json", list[bytes]()

    def time_out() -> None:
        """What was sent is on its way."""
        held.append(bytes(store.get(name).bytes()))
        store.delete(name)
        raise OSError("operation timed out")

    steps.once(FAILPOINT_COMMITTED, time_out)
    with pytest.raises(OutcomeUnknown, match="may still come through"):
        joblog.append(entries)
    if lands:
        store.put(name, held[0], mode="create")
    joblog.append(entries)
    successor = DeltaJobLog(uri, SystemClock(), EnvironmentFailpoints())
    successor.claim_term()
    assert [each.job_id for each in successor.load()] == [entries[0].row.job_id]
    assert successor.requests() == {entries[0].row.job_id: ("r1",)}


def test_a_bucket_that_is_not_there_is_no_missing_table(s3: FakeS3) -> None:
    with pytest.raises(StorageError, match="NoSuchBucket"):
        newest_version("s3://nobodys/table")


def test_a_store_that_does_not_answer_is_a_fault_that_passes() -> None:
    nobody = FakeS3(port=9)
    with asking(nobody):
        for look in (lambda: read_commit("s3://lake/t", 0), lambda: DeltaProbe().first_probe("s3://lake/t")):
            with pytest.raises(StorageError):
                look()


def test_a_table_above_or_below_a_place_is_found(uri: str) -> None:
    catalog = DeltaCatalog(s3=True)
    write_deltalake(f"{uri}/outer", rows(1))
    write_deltalake(f"{uri}/lake/deep/inner", rows(1))
    assert catalog.table_around(f"{uri}/outer/a/b") == f"{uri}/outer"
    assert catalog.table_around(f"{uri}/lake") == f"{uri}/lake/deep/inner"
    for free in ("outer", "lake/deep/inner", "lake/deep/beside", "out"):
        assert catalog.table_around(f"{uri}/{free}") == ""


def test_a_note_beside_a_table_is_replaced_and_no_part_of_it(uri: str) -> None:
    write_deltalake(uri, rows(1))
    assert read_note(uri, "n", 100) is None
    for content in (b"one", b"another"):
        write_note(uri, "n", content)
        assert read_note(uri, "n", 100) == content
    with pytest.raises(StorageError, match="more than the 3"):
        read_note(uri, "n", 3)
    DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert read_note(uri, "n", 100) == b"another"
    assert DeltaCatalog(s3=True).table_around(uri) == ""
    assert DeltaTable(uri).to_pyarrow_table().num_rows == 1


def test_rows_of_a_target_are_marked_as_gone(uri: str) -> None:
    columns = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    create_target(uri, columns, {**VECTORS, "delta.enableChangeDataFeed": "true"}, tag(1, -1))
    writer = BagWriter(uri)
    weights = pa.array([3, 1, 1], pa.int64())
    assert writer.change(rows(1, 2, 3).append_column(WEIGHT, weights), tag(2, 0)) == 5
    assert writer.change(rows(1).append_column(WEIGHT, pa.array([-2], pa.int64())), tag(3, 1)) == 2
    assert writer.replace_keys(rows(2, 2), rows(2, 3), tag(4, 2)) == 2
    with pytest.raises(Conflict):
        BagWriter(uri).change(rows(7).append_column(WEIGHT, pa.array([1], pa.int64())), tag(4, 2))
    held = pa.table(QueryBuilder().register("t", DeltaTable(uri)).execute("SELECT id FROM t").read_all())
    assert sorted(held["id"].to_pylist()) == [1, 2, 2]


def tag(seq: int, base: int) -> CommitTag:
    return CommitTag(seq, "j", "s", -1, Watermark(), 1, base, f"a{seq}", "tail")


def as_rows(table: pa.Table) -> Rows:
    def make_frame() -> NoReturn:
        raise AssertionError("Spark is not needed")

    return Rows(make_frame, lambda: table)


def test_a_commit_whose_answer_was_lost_is_ones_own_and_keeps_its_files(tmp_path: Path) -> None:
    """The store has done what it answers by a fault, and refuses the repetition as another's."""
    columns = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    with s3_server(tmp_path / "log", fault="lose-answers") as lossy, asking(lossy):
        note = lossy.uri("tables/note")
        assert [files.create(note, b"1") for _ in range(2)] == [True, False]
        marked = lossy.uri("tables/marked")
        create_target(marked, columns, VECTORS, tag(1, -1))
        writer = BagWriter(marked)
        assert writer.change(rows(1, 2).append_column(WEIGHT, pa.array([1, 1], pa.int64())), tag(2, 0)) == 2
        assert writer.change(rows(1).append_column(WEIGHT, pa.array([-1], pa.int64())), tag(3, 1)) == 1
        plain = lossy.uri("tables/plain")
        sink = DeltaSink(plain, EnvironmentFailpoints({}))
        at = sink.claim(json.dumps(columns), tag(1, -1), first=True)
        at = sink.append(as_rows(rows(2)), tag(2, at.base_version), OpenGuard())
        assert (at.seq, sink.renew(tag(3, at.base_version)) is not None) == (2, True)
        with pytest.raises(Conflict):
            DeltaSink(plain, EnvironmentFailpoints({})).append(
                as_rows(rows(9)), replace(tag(3, at.base_version), attempt="another"), OpenGuard()
            )
        for each in (marked, plain):
            held = pa.table(QueryBuilder().register("t", DeltaTable(each)).execute("SELECT id FROM t").read_all())
            assert held["id"].to_pylist() == [2]


def test_ranges_of_a_build_are_counted_once(uri: str) -> None:
    def ranges(job_id: str) -> FileStagedRanges:
        return FileStagedRanges(uri, BuildId(job_id, 1, "abcd"), EnvironmentFailpoints({}))

    earlier, build = ranges("a0"), ranges("a1")
    earlier.begin()
    with pytest.raises(PlanOutdated):
        build.stage(1, None)
    build.begin()
    for range_id in (2, 3, 2):
        build.stage(range_id, None)
    assert build.state() == StagedState(True, None, frozenset({2, 3}))
    assert build.manifests([2, 3]) == []
    assert not earlier.state().begun
    build.remove()
    build.remove()
    assert not build.state().begun


def test_a_target_is_deleted_with_its_log_and_what_others_have_put_there_stays(uri: str) -> None:
    row = job(1)._replace(job_id="job-1")
    sink = DeltaSink(uri, ScriptedFailpoints())
    tag = CommitTag(1, "job-1", "t-1", -1, Watermark(0, 1.0), 1, -1, "try-1", "claim")
    sink.claim(Schema.from_arrow(rows().schema).to_json(), tag, first=True)
    write_deltalake(
        uri,
        rows(1, 2),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": tag_json(replace(tag, seq=2, base_version=0))},
            app_transactions=[Transaction(APP_ID, 2)],
        ),
    )
    write_note(uri, "ways", b"{}")
    files.create(f"{uri}/notes.txt", b"mine")
    files.create(f"{uri}-beside/notes.txt", b"mine")
    deleted = sink.delete(DeletionOrder(row, 1, OpenGuard()), [])
    assert (deleted.seq, deleted.left) == (3, (f"{uri}/notes.txt",))
    assert dict(files.files_below(uri)).keys() == {"notes.txt"}
    assert files.exists(f"{uri}-beside/notes.txt")
    assert sink.delete(DeletionOrder(row, 1, OpenGuard()), []).left == ()
