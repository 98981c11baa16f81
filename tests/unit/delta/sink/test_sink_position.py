"""A sink's position, read from logs made by hand: which commits are trusted, and which make it void.

Rows get the columns of their target: missing ones are null, narrower types are widened.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from iscp.delta.log.commits import APP_ID, read_commit_trace
from iscp.delta.sink.sink_position import Columns, PositionReader, tag_json
from iscp.model.job.job_row import JobRow, JobStatus
from iscp.model.values.errors import Conflict, StorageError
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import DeadLetters, Position, SourceMark, Watermark
from iscp.ports.sink import CommitTag
from tests.fakes.commit_files import commit_path
from tests.fakes.tracing import traceparent

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
METADATA = {
    "metaData": {
        "id": "m-1",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": SCHEMA,
        "partitionColumns": [],
        "configuration": {},
    }
}
ANOTHER_TABLE = {"metaData": METADATA["metaData"] | {"id": "m-2"}}
OTHER_COLUMNS = {"metaData": METADATA["metaData"] | {"schemaString": SCHEMA.replace("long", "string")}}
PROTOCOL = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
NUMBERS = count(1)


def add(changes_data: bool = True) -> dict[str, object]:
    path = f"part-{next(NUMBERS)}.parquet"
    body = {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": changes_data}
    return {"add": body}


@dataclass
class Log:
    """A table's log, commit by commit; the first makes the table."""

    uri: str
    seq: int = 0
    version: int = -1
    ours_at: int = -1
    tags: dict[int, CommitTag] = field(default_factory=dict)

    def commit(self, operation: str, actions: Sequence[Mapping[str, object]], metadata: str = "") -> int:
        self.version += 1
        first = [PROTOCOL, METADATA] if self.version == 0 else []
        about = {"timestamp": 1_000 + self.version, "operation": operation, "operationParameters": {}}
        if metadata:
            about["userMetadata"] = metadata
        path = commit_path(self.uri, self.version)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(json.dumps(each) for each in [{"commitInfo": about}, *first, *actions]))
        return self.version

    def ours(self, base: int | None = None) -> int:
        self.seq += 1
        base = self.version if base is None else base
        mark = Watermark(self.seq * 10, float(self.seq))
        tag = CommitTag(self.seq, "job-1", "s-1", self.seq * 10 - 10, mark, 3, base, f"try-{self.seq}", "tail")
        sources = {"/other": SourceMark("o-1", Watermark(self.seq, 0.5))} if self.seq % 2 else {}
        tag = replace(tag, column_ids={"a": f"id-{self.seq}"}, sources=sources)
        self.tags[self.seq] = tag
        txn = {"txn": {"appId": APP_ID, "version": self.seq}}
        self.ours_at = self.commit("MERGE", [txn, add()], tag_json(tag))
        return self.ours_at

    def foreign(self) -> int:
        return self.commit("WRITE", [add()])

    def harmless(self) -> int:
        return self.commit("OPTIMIZE", [add(changes_data=False)])

    def remove(self, upto: int, after: int = -1) -> None:
        """Clean the log of all commits up to `upto`; a checkpoint stands for them."""
        DeltaTable(self.uri).create_checkpoint()
        for version in range(after + 1, upto + 1):
            os.remove(commit_path(self.uri, version))

    def expected(self, seq: int | None = None) -> Position:
        tag = self.tags[self.seq if seq is None else seq]
        return Position(
            *(tag.seq, tag.watermark, tag.job_id, tag.source_id),
            base_version=self.version,
            column_ids=tag.column_ids,
            sources=tag.sources,
        )


def job(seq: int = 0, version: int = -1, uri: str = "") -> JobRow:
    return JobRow(JobKey("a", "s-1", "x"), "job-1", "{}", "t", uri, seq=seq, watermark=Watermark(version, 0.0))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(str(tmp_path / "target"))


def read(log: Log, row: JobRow | None = None) -> Position:
    return PositionReader(log.uri).read(row or job())


def test_the_trace_of_a_commit_is_in_its_metadata_and_changes_nothing_else(log: Log) -> None:
    log.ours()
    tag = replace(log.tags[1], trace=traceparent(7))
    assert json.loads(tag_json(tag)) == {**json.loads(tag_json(log.tags[1])), "traceparent": traceparent(7)}
    txn = {"txn": {"appId": APP_ID, "version": 1}}
    log.version, log.seq = -1, 1
    log.commit("MERGE", [txn, add()], tag_json(tag))
    assert read(log) == log.expected()
    assert read_commit_trace(log.uri, 0) == traceparent(7)


def test_a_target_that_was_never_there_is_free(log: Log) -> None:
    assert read(log) == Position()


def test_a_target_that_is_gone_is_void_but_one_whose_directory_is_gone_may_come_back(tmp_path: Path) -> None:
    assert "not there" in PositionReader(str(tmp_path / "target")).read(job(seq=4)).void
    for row in (job(), job(seq=4)):
        with pytest.raises(StorageError, match="Mount"):
            PositionReader(str(tmp_path / "unmounted" / "target")).read(row)
    assert PositionReader(str(tmp_path / "target")).read(job()) == Position()


def test_a_table_without_a_commit_of_ours_is_not_ours(log: Log) -> None:
    log.foreign()
    log.harmless()
    assert read(log) == Position(base_version=1)
    assert "no commit of ours" in read(log, job(seq=4)).void


def test_the_last_commit_of_ours_gives_seq_and_watermark(log: Log) -> None:
    for _ in range(3):
        log.ours()
    assert read(log) == log.expected()
    log.harmless()
    assert read(log) == log.expected()


@pytest.mark.parametrize(
    ("operation", "actions", "void"),
    [
        ("WRITE", [add()], True),
        ("DELETE", [{"remove": {"path": "part-1.parquet", "dataChange": True, "deletionTimestamp": 1}}], True),
        ("MERGE", [{"cdc": {"path": "c", "partitionValues": {}, "size": 1, "dataChange": False}}], True),
        ("RESTORE", [METADATA], True),
        ("CREATE OR REPLACE TABLE", [METADATA], True),
        ("ADD COLUMN", [METADATA], True),
        ("OPTIMIZE", [add(changes_data=False)], False),
        ("VACUUM END", [], False),
        ("SET TBLPROPERTIES", [METADATA], False),
        ("UNSET TBLPROPERTIES", [METADATA], False),
        ("SET TBLPROPERTIES", [ANOTHER_TABLE], True),
        ("SET TBLPROPERTIES", [OTHER_COLUMNS], True),
        ("OPTIMIZE", [{"future": {}}], True),
    ],
)
def test_what_others_commit_makes_it_void_if_it_may_touch_the_rows(
    log: Log, operation: str, actions: list[dict[str, object]], void: bool
) -> None:
    log.ours()
    remembering = PositionReader(log.uri)
    remembering.read(job())
    log.commit(operation, actions)
    for position in (remembering.read(job()), read(log)):
        assert bool(position.void) is void
        assert replace(position, void="") == log.expected()
        assert not void or ("version 1" in position.void and (operation in position.void or "future" in position.void))


def test_a_commit_made_on_a_base_that_had_seen_the_foreign_one_heals(log: Log) -> None:
    log.ours()
    log.foreign()
    log.ours()
    assert read(log) == log.expected()


def test_a_foreign_commit_that_slipped_in_under_ours_makes_it_void(log: Log) -> None:
    base = log.ours()
    log.foreign()
    log.ours(base=base)
    assert "version 1" in read(log).void


def test_the_first_reason_is_kept_until_it_is_healed(log: Log) -> None:
    reader = PositionReader(log.uri)
    log.ours()
    reader.read(job())
    log.foreign()
    first = reader.read(job()).void
    log.foreign()
    log.harmless()
    assert reader.read(job()).void == first
    log.ours()
    assert reader.read(job()) == log.expected()


@pytest.mark.parametrize("metadata", ["", "not json", "[]", '{"seq": 1}'])
def test_a_seq_without_our_metadata_is_not_ours(log: Log, metadata: str) -> None:
    log.ours()
    log.commit("WRITE", [{"txn": {"appId": APP_ID, "version": 9}}], metadata)
    position = read(log)
    assert (position.seq, position.job_id, position.watermark.version) == (9, "", -1)
    assert position.void


@pytest.mark.parametrize("foreign", [True, False])
def test_our_commit_was_cleaned_away_and_what_came_after_it_is_not_known(log: Log, foreign: bool) -> None:
    """The row in the job log, of the same seq, says what the rows should be; a comparison shows if they still are."""
    log.ours()
    log.ours()
    log.foreign() if foreign else log.harmless()
    log.harmless()
    log.remove(upto=2)
    expected = Position(2, Watermark(20, 0.0), "job-1", "s-1", base_version=3, dead=DeadLetters(seq=-1))
    position = read(log, job(seq=2, version=20))
    assert replace(position, void="") == expected
    assert "begins at version 3" in position.void


def test_who_has_seen_all_commits_needs_none_that_was_cleaned_away(log: Log) -> None:
    log.ours()
    log.harmless()
    reader = PositionReader(log.uri)
    assert reader.read(job()) == log.expected()
    log.remove(upto=0)
    log.harmless()
    assert reader.read(job()) == log.expected()
    log.remove(upto=2, after=0)
    log.harmless()
    assert reader.read(job(seq=1, version=10)).void, "the log may be another one"


def test_a_position_is_overtaken_while_others_have_the_last_commit(log: Log) -> None:
    reader = PositionReader(log.uri)
    assert not reader.overtaken
    for commit, overtaken in ((log.ours, False), (log.harmless, True), (log.ours, False), (log.foreign, True)):
        commit()
        reader.read(job())
        assert reader.overtaken is overtaken
    again = PositionReader(log.uri)
    again.read(job())
    assert again.overtaken


def test_the_shape_is_another_one_after_each_commit_that_may_change_it_and_in_a_log_recreated(log: Log) -> None:
    log.ours()
    reader = PositionReader(log.uri)
    shapes = []
    for commit in (log.ours, log.harmless, lambda: log.commit("MERGE", [METADATA, add()]), log.ours):
        commit()
        reader.read(job())
        shapes.append(reader.shape)
    assert shapes[0] == shapes[1] != shapes[2] == shapes[3]
    shutil.rmtree(log.uri)
    again = Log(log.uri)
    for _ in range(4):
        again.ours()
    reader.read(job())
    assert reader.shape not in shapes


def test_our_commit_between_two_steps_was_cleaned_away_and_the_job_log_knows_the_step(log: Log) -> None:
    """Otherwise an append-only target would be given the steps before it once more."""
    log.ours()
    log.harmless()
    log.remove(upto=0)
    status = JobStatus(from_version=10, to_version=10, step=2, steps=5)
    row = job(seq=1, version=10)._replace(status_json=status.to_json())
    assert read(log, row).watermark == Watermark(10, 0.0, 2, 5)
    other = replace(status, to_version=9)
    assert read(log, row._replace(status_json=other.to_json())).watermark == Watermark(10, 0.0)


@pytest.mark.parametrize(("seq", "version"), [(1, 10), (3, 30), (2, -1), (0, -1)])
def test_our_commit_was_cleaned_away_and_nobody_knows_whose_rows_these_are(log: Log, seq: int, version: int) -> None:
    log.ours()
    log.ours()
    log.harmless()
    log.remove(upto=1)
    position = read(log, job(seq=seq, version=version))
    assert (position.seq, position.job_id, position.watermark.version) == (2, "", -1)
    assert position.void


def test_what_lay_under_our_commit_was_cleaned_away_unseen(log: Log) -> None:
    """Nobody can know any more whether it was harmless: the rows are compared."""
    base = log.ours()
    log.foreign()
    log.ours(base=base)
    log.remove(upto=1)
    assert read(log).void
    assert read(log).seq == 2


def test_a_cleaned_log_whose_last_commit_of_ours_is_there_with_its_base_is_as_good_as_a_whole_one(log: Log) -> None:
    log.ours()
    log.ours()
    log.harmless()
    log.remove(upto=0)
    assert read(log) == log.expected()


def test_a_table_recreated_is_not_taken_for_the_remembered_one(log: Log) -> None:
    log.ours()
    log.ours()
    reader = PositionReader(log.uri)
    assert reader.read(job()) == log.expected()
    shutil.rmtree(log.uri)
    again = Log(log.uri)
    again.ours()
    again.foreign()
    again.ours(base=0)
    assert "version 1" in reader.read(job()).void
    shutil.rmtree(log.uri)
    assert reader.read(job()) == Position()


def test_an_unchanged_sink_is_not_opened_again(log: Log) -> None:
    log.ours()
    log.ours()
    reader = PositionReader(log.uri)
    expected = reader.read(job())
    # All but the last commit file is gone: whoever opened the table would find it broken.
    os.remove(commit_path(log.uri, 0))
    assert reader.read(job()) == expected


def test_a_commit_is_confirmed_by_its_seq_and_attempt_behind_its_base(log: Log) -> None:
    log.ours()
    log.foreign()
    log.ours()
    reader, first, second = PositionReader(log.uri), log.tags[1], log.tags[2]
    assert reader.confirm(first) == 0
    assert reader.confirm(second) == 2
    for lost in (
        replace(second, attempt="try-other"),
        replace(second, base_version=2),
        replace(second, seq=3),
    ):
        with pytest.raises(Conflict, match="won by another writer"):
            reader.confirm(lost)


@pytest.mark.parametrize("cleaned", [2, 3], ids=["the last free version", "one further back"])
def test_a_commit_where_the_log_was_cleaned_away_is_not_confirmed(log: Log, cleaned: int) -> None:
    """A writer slept behind version 1 while others committed, and their log was cleaned: version 2 is free again."""
    log.ours()
    log.ours()
    for _ in range(4):
        log.foreign()
    log.remove(upto=cleaned)
    late = Log(log.uri, seq=2, version=1)
    late.ours()
    with pytest.raises(Conflict, match="has gone on without seq 3"):
        PositionReader(log.uri).confirm(late.tags[3])


# --- any sequence of commits -----------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[Log, int], int]] = {
    # Whoever writes has seen the table, or makes it, and the commit of the seq before.
    "ours": lambda log, behind: log.ours(base=max(min(0, log.version), log.ours_at, log.version - behind)),
    "foreign": lambda log, behind: log.foreign(),
    "harmless": lambda log, behind: log.harmless(),
}
STEPS = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 3), st.booleans()), min_size=1, max_size=12)


@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_it_is_void_just_when_a_foreign_change_lies_after_the_base_of_our_last_commit(
    steps: list[tuple[str, int, bool]],
) -> None:
    with TemporaryDirectory() as root:
        log = Log(f"{root}/target")
        reader = PositionReader(log.uri)
        kinds: list[str] = []
        for kind, behind, looks in steps:
            KINDS[kind](log, behind)
            kinds.append(kind)
            if looks:
                reader.read(job())
        for position in (reader.read(job()), read(log)):
            if "ours" not in kinds:
                assert position == Position(base_version=log.version)
                continue
            base = log.tags[log.seq].base_version
            assert bool(position.void) is ("foreign" in kinds[base + 1 :])
            assert replace(position, void="") == log.expected()


TURNS = st.lists(
    st.tuples(st.sampled_from([*sorted(KINDS), "clean"]), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=14
)


@given(TURNS)
@settings(max_examples=60, deadline=None)
def test_no_node_trusts_rows_that_others_may_have_changed_however_the_log_is_cleaned(
    steps: list[tuple[str, int, int]],
) -> None:
    """Three nodes, one of which probes after each commit, and one that starts at the end; the job log is up to date."""
    with TemporaryDirectory() as root:
        log, kinds, cleaned = Log(f"{root}/target"), list[str](), -1
        nodes = [PositionReader(log.uri) for _ in range(3)]
        for kind, number, looks in steps:
            if kind != "clean":
                KINDS[kind](log, number)
                kinds.append(kind)
            elif cleaned < (upto := log.version - 1 - number):
                log.remove(upto, after=cleaned)
                cleaned = upto
            if log.version >= 0:
                nodes[looks].read(job(log.seq, log.seq * 10))
        if "ours" not in kinds:
            return
        base = log.tags[log.seq].base_version
        changed = "foreign" in kinds[base + 1 :]
        for node in (*nodes, PositionReader(log.uri)):
            position = node.read(job(log.seq, log.seq * 10))
            assert position.seq == log.seq
            assert position.void or not changed
            assert cleaned > base or bool(position.void) is changed


def columns(**kinds: str) -> Columns:
    fields = [{"name": name, "type": kind, "nullable": False, "metadata": {"x": 1}} for name, kind in kinds.items()]
    return Columns(json.dumps({"type": "struct", "fields": fields}))


def schema(**kinds: str) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return json.dumps({"type": "struct", "fields": fields})


def test_rows_that_fit_are_left_as_they_are() -> None:
    rows = pa.table({"B": ["x"], "a": pa.array([1], pa.int64())})
    assert columns(a="long", b="string").fitted(rows) is rows


def test_what_they_lack_is_null_and_what_is_narrower_is_widened() -> None:
    rows = pa.table({"A": pa.array([1], pa.int32())})
    fitted = columns(a="long", b="string", c="timestamp").fitted(rows)
    assert fitted.to_pylist() == [{"a": 1, "b": None, "c": None}]
    assert fitted.schema.field("a").type == pa.int64()


def test_what_a_table_takes_and_what_is_just_like_it() -> None:
    held = columns(a="long", b="string")
    assert held.match(schema(b="string", a="long"))
    for other in (schema(a="long"), schema(A="integer"), schema(b="string", a="long")):
        assert held.take(other)
    for other in (schema(a="long", c="string"), schema(a="string"), schema(a="double")):
        assert not held.take(other)
        assert not held.match(other)
