"""Indexes follow their source through every kind of change, exactly once, and are equal to it after each."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.consumers.index.index_consumer import SHARED_KEY
from iscp.delta.log.commits import read_commit
from iscp.index.lance.index_transaction import IndexTransaction
from iscp.index.lance.lance_access import open_dataset
from iscp.index.lance.word_counts import PlacedHead
from iscp.index.search.searched_index import open_whole
from iscp.model.job.iteration import Bounds, DataType, Purpose
from iscp.model.spec.spec import ChangeMode
from iscp.model.values.errors import EngineError, ErrorCode
from tests.fakes.guards import ScriptedFailpoints

from .conftest import BOTH_WAYS, SPARK_IN_FULL, Pipeline
from .indexing import Indexing, documents

pytestmark = pytest.mark.spark


@pytest.fixture
def indexing(pipeline: Pipeline) -> Indexing:
    return Indexing(pipeline)


def _die() -> None:
    raise EngineError("the process died here")


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["fulltext", "vector", "search"])
@pytest.mark.slow(but=3)
def test_an_index_follows_upserts_deletions_and_versions_without_rows(indexing: Indexing, kind: str) -> None:
    job = indexing.job(kind)
    (built,) = indexing.run(job)
    assert (built.error_msg, built.data_type, built.seq) == ("", DataType.SNAPSHOT, 2)
    indexing.assert_equal(job)

    indexing.upsert(documents([1, 2, 3, 77], turn=1))
    indexing.delete("id BETWEEN 20 AND 24")
    (followed,) = indexing.run(job)
    assert (followed.error_msg, followed.data_type, followed.seq, followed.rows) == ("", DataType.TAIL, 3, 9)
    indexing.assert_equal(job)

    version = DeltaTable(indexing.source).version()
    DeltaTable(indexing.source).alter.set_table_properties({"delta.logRetentionDuration": "interval 40 days"})
    assert DeltaTable(indexing.source).version() == version + 1
    (renewed,) = indexing.run(job)
    assert (renewed.error_msg, renewed.seq) == ("", 4)
    indexing.assert_equal(job)


@BOTH_WAYS
@pytest.mark.parametrize("change_source", ["auto", "diff"])
@pytest.mark.slow(but=2)
def test_only_changed_rows_are_written_and_embedded_after_an_overwrite(indexing: Indexing, change_source: str) -> None:
    job = indexing.job("search", policies={"change_source": ChangeMode(change_source)})
    indexing.run(job)
    embedded = indexing.embedded()
    same = DeltaTable(indexing.source).to_pyarrow_table()
    write_deltalake(indexing.source, same, mode="overwrite")
    (compared,) = indexing.run(job)
    assert compared.error_msg == ""
    assert indexing.embedded() == embedded
    index = indexing.assert_equal(job)
    assert sorted(each.count_rows() for each in index.dataset.get_fragments()) == [1, 40]  # none was written again

    some = same.filter(pa.array([each > 2 for each in same["id"].to_pylist()]))
    other = documents([2]).set_column(2, "body", pa.array(["a text that no other row has"]))
    write_deltalake(indexing.source, pa.concat_tables([some, other]), mode="overwrite")
    (compared,) = indexing.run(job)
    assert compared.error_msg == ""
    assert indexing.embedded() == embedded + 1
    indexing.assert_equal(job)


def test_a_resync_and_another_definition_embed_nothing_again(indexing: Indexing) -> None:
    indexing.run(indexing.job("search"))
    embedded = indexing.embedded()
    indexing.forget_vectors()
    (again,) = indexing.run(indexing.job("search", registration=2))
    assert (again.error_msg, again.data_type, again.seq) == ("", DataType.SNAPSHOT, 4)
    assert indexing.embedded() == embedded
    wider = {"columns": "body,title", "text": "body", "embed": "hashed", "language": "english"}
    job = indexing.job("search", registration=3, options=wider)
    (other,) = indexing.run(job)
    assert (other.error_msg, other.seq) == ("", 6)
    assert indexing.embedded() == embedded
    assert len(indexing.index(job).head.totals) == 2


@SPARK_IN_FULL
def test_rows_that_cannot_be_indexed_are_counted_and_the_others_go_on(indexing: Indexing) -> None:
    job = indexing.job("vector")
    indexing.run(job)
    odd = pa.table(
        {
            "id": pa.array([100, 101, 102, 103], pa.int64()),
            "title": ["t"] * 4,
            "body": ["b"] * 4,
            "embedding": pa.array(
                [[1.0, 2.0], [1.0, float("nan"), 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]], pa.list_(pa.float32())
            ),
            "price": [1.0] * 4,
        }
    )
    write_deltalake(indexing.source, odd, mode="append")
    (outcome,) = indexing.run(job)
    assert (outcome.error_msg, outcome.dead_letters) == ("", 3)
    faults = {row["id"]: row["_fault"] for row in indexing.index(job).dataset.to_table().to_pylist() if row["_fault"]}
    assert faults == {
        100: "its vector has 2 numbers, not 3",
        101: "its vector has null, NaN or infinite numbers",
        102: "its vector is all zeros, which has no direction",
    }
    indexing.assert_sums(indexing.index(job))
    assert indexing.verify(job).equal

    indexing.upsert(documents([100, 101, 102], turn=2))
    (mended,) = indexing.run(job)
    assert (mended.error_msg, mended.dead_letters) == ("", 0)
    indexing.assert_equal(job)


@SPARK_IN_FULL
def test_rows_that_share_a_key_are_left_out_until_they_no_longer_do(indexing: Indexing) -> None:
    write_deltalake(indexing.source, documents([5, 6, 6], turn=4), mode="append")
    job = indexing.job("fulltext")
    (outcome,) = indexing.run(job)
    assert (outcome.error_msg, outcome.dead_letters) == ("", 2)
    index = indexing.index(job)
    found = {row["id"]: row["_fault"] for row in index.dataset.to_table().to_pylist() if row["_fault"]}
    assert found == {5: SHARED_KEY, 6: SHARED_KEY}
    indexing.assert_sums(index)
    assert indexing.verify(job).equal

    indexing.delete("id = 5 OR id = 6")
    indexing.upsert(documents([6], turn=5))
    (outcome,) = indexing.run(job)
    assert (outcome.error_msg, outcome.dead_letters) == ("", 0)
    indexing.assert_equal(job)


def test_a_row_stays_no_longer_than_its_key_is_its_own(indexing: Indexing) -> None:
    job = indexing.job("fulltext")
    indexing.run(job)
    write_deltalake(indexing.source, documents([6]), mode="append")  # as the one that is there
    job_by_difference = indexing.job("fulltext", policies={"change_source": ChangeMode.DIFF})
    for _ in range(2):
        (outcome,) = indexing.run(job_by_difference)
        assert (outcome.error_msg, outcome.dead_letters) == ("", 1)
        found = {
            row["id"]: row["_fault"] for row in indexing.index(job).dataset.to_table().to_pylist() if row["_fault"]
        }
        assert found == {6: SHARED_KEY}
        DeltaTable(indexing.source).update({"title": "'another'"}, predicate="id = 7")
    assert indexing.verify(job_by_difference).equal


@pytest.mark.parametrize("failpoint", ["index.fragments", "index.commit.before", "index.commit.after", "report.before"])
def test_changes_are_applied_once_wherever_an_iteration_dies(indexing: Indexing, failpoint: str) -> None:
    job = indexing.job("search")
    indexing.run(job)
    indexing.upsert(documents([1, 90], turn=6))
    indexing.failpoints.once(failpoint, _die)
    assert indexing.run(job)[0].error_code == ErrorCode.ENGINE
    assert indexing.run(job)[0].error_code == ErrorCode.OK
    assert indexing.assert_equal(job).head.rows == 41


def test_a_late_writer_of_one_seq_loses_and_starts_over(indexing: Indexing) -> None:
    job = indexing.job("fulltext")
    indexing.run(job)
    indexing.upsert(documents([1, 91], turn=7))
    other = indexing.other_runner()
    indexing.failpoints.once("index.commit.before", lambda: indexing.run(job, runner=other))
    (outcome,) = indexing.run(job)
    assert (outcome.error_msg, outcome.seq) == ("", 3)
    indexing.assert_equal(job)
    assert indexing.run(indexing.job("fulltext", registration=2))[0].seq == 5
    assert indexing.run(job)[0].error_code == ErrorCode.SUPERSEDED


def test_first_vectors_that_come_later_say_how_many_numbers_they_have(indexing: Indexing) -> None:
    write_deltalake(indexing.source, documents([12, 25]), mode="overwrite")  # neither has a vector
    job = indexing.job("vector")
    indexing.run(job)
    assert indexing.index(job).head.vectors == 0
    indexing.upsert(documents([1, 2]))
    (outcome,) = indexing.run(job)
    assert outcome.error_msg == ""
    assert indexing.assert_equal(job).head.vectors == 2


def test_a_verification_finds_what_is_wrong_and_a_repair_makes_it_right(indexing: Indexing) -> None:
    job = indexing.job("search")
    indexing.run(job)
    assert indexing.verify(job).equal
    index = indexing.index(job)
    open_dataset(index.root).delete("id = 3")
    open_dataset(index.root).update({"_words_0": "' other words '"}, where="id = 4")
    report = indexing.verify(job)
    assert (report.comparison.missing, report.comparison.different, report.comparison.extra) == (1, 1, 0)
    repaired = indexing.verify(job, Purpose.REPAIR)
    assert repaired.repaired
    assert indexing.verify(job).equal
    indexing.assert_equal(job)


def test_a_verification_finds_sums_that_are_wrong(indexing: Indexing) -> None:
    job = indexing.job("fulltext")
    indexing.run(job)
    index = indexing.index(job)
    placed = PlacedHead(index.head.emptied(2), index.head_address)
    IndexTransaction(index.root, index.dataset, placed, ScriptedFailpoints()).commit()
    assert not indexing.verify(job).equal
    assert indexing.verify(job, Purpose.REPAIR).repaired
    assert indexing.verify(job).equal
    indexing.assert_equal(job)


def test_no_search_sees_a_commit_that_is_applied_in_steps_before_all_of_it_is_there(indexing: Indexing) -> None:
    job = indexing.job("fulltext")
    indexing.run(job)
    indexing.upsert(documents(list(range(20, 60)), turn=8))
    large = read_commit(indexing.source, 1)
    assert large is not None
    bounds = Bounds(bytes_max=large.bytes // 3 + 1)
    runner = indexing.pipeline.new_runner(indexing.failpoints, bounds, kinds=indexing.kinds)
    before = open_whole(job.spec.consumer.target)
    watermarks = []
    for _ in range(3):
        (outcome,) = indexing.run(job, runner=runner)
        assert outcome.error_msg == ""
        watermarks.append((outcome.watermark.version, outcome.watermark.step))
        if outcome.watermark.steps:
            found = open_whole(job.spec.consumer.target)
            assert (found.version, found.head.version) == (before.version, 0)
            assert indexing.index(job).head.whole == before.version
        if outcome.watermark.version == 1:
            break
    assert watermarks[0] == (0, 1)
    assert watermarks[-1] == (1, 0)
    assert indexing.assert_equal(job).head.whole == 0
    assert open_whole(job.spec.consumer.target).head.version == 1


def test_rows_of_another_source_are_searched_by_nobody_once_the_index_is_claimed(indexing: Indexing) -> None:
    first = indexing.job("fulltext")
    indexing.run(first)
    indexing.failpoints.once("snapshot.before", _die)
    assert indexing.run(indexing.job("fulltext", registration=2))[0].error_code == ErrorCode.ENGINE
    assert indexing.index(first).head.version == 0  # the same source: they are searched until there are others

    indexing.replace_source(documents([500, 501]))
    job = indexing.job("fulltext", registration=3)
    indexing.failpoints.once("snapshot.before", _die)
    assert indexing.run(job)[0].error_code == ErrorCode.ENGINE
    assert indexing.index(job).head.version == -1
    (built,) = indexing.run(job)
    assert built.error_msg == ""
    assert indexing.assert_equal(job).head.rows == 2
