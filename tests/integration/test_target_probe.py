"""Targets that are damaged behind iscp's back: noticed by a probe, named, and right again when they are repaired.

Real Delta tables, the real sink, and the real consumers; no Spark: the job's commits are made by deltalake.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from obstore.store import from_url

from iscp.app.registry import ConsumerRegistry
from iscp.app.shard_parts import LOG_PROBES
from iscp.delta.sink.delta_sink import DeltaSink
from iscp.delta.source.change_source import DeltaChangeSource
from iscp.engine.iteration_ports import SinkPool
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import ErrorCode, IscpError, StorageError, TargetLost
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark
from iscp.ports.sink import CommitTag
from iscp.ports.source import Rows
from iscp.schedule.probe_pool import TargetProbes, WaitedTargets
from iscp.system.threads import SystemClock
from tests.fakes.guards import OpenGuard, ScriptedFailpoints
from tests.fakes.s3 import FakeS3, delete_all

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'


def appended(*ids: int) -> Rows:
    return Rows(pytest.fail, lambda: pa.table({"id": pa.array(ids, pa.int64())}))


def tag(seq: int, version: int, base: int) -> CommitTag:
    return CommitTag(seq, "job-1", "source", -1, Watermark(version, 1.0), 1, base, f"attempt-{seq}", "tail")


class Kept:
    """A replica's target at version 7 of its source, by a claim and a commit with rows; and those who look at it."""

    def __init__(self, uri: str) -> None:
        sink = DeltaSink(uri, ScriptedFailpoints())
        sink.claim(SCHEMA, tag(1, -1, -1))
        sink.append(appended(1, 2, 3), tag(2, 7, 0), OpenGuard())
        spec = JobSpec(ConsumerSpec("replica", uri, key=("id",)))
        key = JobKey("default", "source", "copy")
        self.row = JobRow(key, "job-1", spec.to_json(), "t", "/t", watermark=Watermark(7, 1.0), seq=2)
        failpoints = ScriptedFailpoints()
        open_sink, source = lambda uri: DeltaSink(uri, failpoints), DeltaChangeSource()
        sinks = SinkPool(open_sink, lambda uri: uri, SystemClock(), failpoints, source, cached_max=0)
        self.looks = TargetProbes(LOG_PROBES, ConsumerRegistry(()).kind, sinks)
        self.waited = WaitedTargets(self.looks)


class Target(Kept):
    """One below a directory of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir()
        super().__init__(str(path))

    @property
    def last_commit(self) -> Path:
        return self.path / "_delta_log" / f"{1:020d}.json"


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path / "volume" / "copy")


def delete(target: Target) -> None:
    shutil.rmtree(target.path)


def delete_log(target: Target) -> None:
    shutil.rmtree(target.path / "_delta_log")


def lose_last_commit(target: Target) -> None:
    target.last_commit.unlink()


def truncate(target: Target) -> None:
    content = target.last_commit.read_bytes()
    target.last_commit.write_bytes(content[: len(content) // 2])


def empty(target: Target) -> None:
    target.last_commit.write_bytes(b"")


def garble(target: Target) -> None:
    target.last_commit.write_bytes(bytes(range(255, 0, -1)))


def zero(target: Target) -> None:
    target.last_commit.write_bytes(bytes(300))


def put_a_file_there(target: Target) -> None:
    shutil.rmtree(target.path)
    target.path.write_text("not a table")


def replace_by_foreign(target: Target) -> None:
    shutil.rmtree(target.path)
    write_deltalake(target.path, pa.table({"id": [1]}))
    write_deltalake(target.path, pa.table({"id": [1]}), mode="append")


def delete_rows(target: Target) -> None:
    DeltaTable(target.path).delete("id = 2")


def unmount(target: Target) -> None:
    target.path.parent.rename(target.path.parent.with_name("away"))


def link_to_itself(target: Target) -> None:
    """What cannot be opened, also by a user who may do anything."""
    target.last_commit.unlink()
    target.last_commit.symlink_to(target.last_commit.name)


DAMAGES: list[tuple[Callable[[Target], None], type[IscpError], int, str]] = [
    (delete, TargetLost, ErrorCode.TARGET_LOST, "not there"),
    (delete_log, TargetLost, ErrorCode.TARGET_LOST, "not there"),
    (lose_last_commit, TargetLost, ErrorCode.TARGET_LOST, "holds nothing|is at version"),
    (truncate, StorageError, ErrorCode.LOG_CORRUPT, "00000000000000000001.json, line 1"),
    (empty, StorageError, ErrorCode.LOG_CORRUPT, "00000000000000000001.json, is empty"),
    (garble, StorageError, ErrorCode.LOG_CORRUPT, "00000000000000000001.json, line 1"),
    (zero, StorageError, ErrorCode.LOG_CORRUPT, "00000000000000000001.json, line 1"),
    (put_a_file_there, StorageError, ErrorCode.STORAGE, "Not a directory|there is a file"),
    (replace_by_foreign, TargetLost, ErrorCode.TARGET_LOST, "no commit of ours"),
    (delete_rows, TargetLost, ErrorCode.TARGET_LOST, "DELETE"),
    (unmount, StorageError, ErrorCode.STORAGE, "Mount or create it"),
    (link_to_itself, StorageError, ErrorCode.LOG_CORRUPT, "is a link, where a regular file belongs"),
]


@pytest.mark.parametrize(("damage", "kind", "code", "words"), DAMAGES, ids=[each[0].__name__ for each in DAMAGES])
@pytest.mark.parametrize("known", [True, False], ids=["seen before", "first look"])
def test_a_damaged_target_is_never_fresh_and_says_what_is_wrong(
    target: Target, damage: Callable[[Target], None], kind: type[IscpError], code: int, words: str, known: bool
) -> None:
    seen = target.looks.probe(target.row, None) if known else None
    whole = target.path.parent.with_name("whole")
    shutil.copytree(target.path.parent, whole)
    damage(target)
    with pytest.raises(kind, match=words) as raised:
        target.looks.probe(target.row, seen)
    assert raised.value.code == code
    assert str(target.path) in str(raised.value)
    assert raised.value.remedy
    assert type(target.waited.fault([target.row])) is kind
    shutil.rmtree(target.path.parent, ignore_errors=True)
    whole.rename(target.path.parent)
    target.looks.probe(target.row, seen)
    assert target.waited.fault([target.row]) is None


def test_a_target_that_nobody_touched_is_as_it_was_seen(target: Target) -> None:
    seen = target.looks.probe(target.row, None)
    assert target.looks.probe(target.row, seen) is seen
    assert seen.uri == str(target.path)
    assert target.waited.fault([target.row]) is None


def test_commits_of_its_own_and_upkeep_are_no_reason_for_doubt(target: Target) -> None:
    seen = target.looks.probe(target.row, None)
    DeltaTable(target.path).optimize.compact()
    DeltaTable(target.path).alter.set_table_properties({"delta.appendOnly": "false"})
    seen = target.looks.probe(target.row, seen)
    sink = DeltaSink(str(target.path), ScriptedFailpoints())
    base = sink.position(target.row).base_version
    sink.append(appended(9), tag(3, 8, base), OpenGuard())
    row = target.row._replace(seq=3, watermark=Watermark(8, 1.0))
    moved = target.looks.probe(row, seen)
    assert moved != seen
    # Versions without a row for it move the job's watermark alone.
    ahead = row._replace(watermark=Watermark(12, 1.0))
    assert target.looks.probe(ahead, moved) is moved
    target.looks.check(ahead)


def test_the_claim_of_a_target_that_is_being_rebuilt_does_not_hold_what_was_applied(target: Target) -> None:
    delete(target)
    DeltaSink(str(target.path), ScriptedFailpoints()).claim(SCHEMA, tag(3, -1, -1))
    fault = target.waited.fault([target.row])
    assert isinstance(fault, TargetLost)


def test_a_target_that_a_later_registration_has_taken_over_is_its_business(target: Target) -> None:
    target.looks.probe(target.row._replace(job_id="job-0"), None)


@pytest.mark.parametrize("known", [True, False], ids=["seen before", "first look"])
def test_a_target_on_s3_that_is_gone_is_noticed(s3: FakeS3, known: bool) -> None:
    uri = s3.uri(f"gone-{known}/copy")
    kept = Kept(uri)
    seen = kept.looks.probe(kept.row, None) if known else None
    if seen is not None:
        assert kept.looks.probe(kept.row, seen) is seen
    assert kept.waited.fault([kept.row]) is None
    delete_all(uri)
    with pytest.raises(TargetLost, match="not there") as raised:
        kept.looks.probe(kept.row, seen)
    assert (raised.value.code, uri in str(raised.value)) == (ErrorCode.TARGET_LOST, True)
    assert isinstance(kept.waited.fault([kept.row]), TargetLost)


def test_a_target_on_s3_whose_last_commit_is_gone_or_damaged_is_noticed(s3: FakeS3) -> None:
    uri = s3.uri("damaged/copy")
    kept, commit = Kept(uri), f"_delta_log/{1:020d}.json"
    seen, store = kept.looks.probe(kept.row, None), from_url(uri)
    whole = bytes(obstore.get(store, commit).bytes())
    obstore.put(store, commit, whole[:40])
    with pytest.raises(StorageError, match="line 1") as raised:
        kept.looks.probe(kept.row, seen)
    assert raised.value.code == ErrorCode.LOG_CORRUPT
    obstore.delete(store, commit)
    with pytest.raises(TargetLost):
        kept.looks.probe(kept.row, seen)
    obstore.put(store, commit, whole)
    kept.looks.probe(kept.row, seen)
    assert kept.waited.fault([kept.row]) is None
