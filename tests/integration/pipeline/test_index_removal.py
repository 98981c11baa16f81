"""The last iteration of an index that ends with its job: real datasets, without a JVM."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from iscp.index.lance.index_store import open_index
from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.search.search_library import read_overview, search
from iscp.index.search.searched_index import FoundHits, SearchedIndex, shown_columns
from iscp.index.search.vector_search import HybridSearch, own_embedder
from iscp.model.api.api_requests import SearchRequest
from iscp.model.job.iteration import Iteration, JobOutcome, Purpose
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import DIRECT_BYTES_MAX
from iscp.model.values.errors import ErrorCode, InvalidRequest, LeaseLost, PermanentError, StorageError
from iscp.ports.consumer import ConsumerKind
from iscp.ports.system import Guard
from iscp.spark.deferred_spark import DeferredSpark, SparkAccess
from iscp.storage import files
from iscp.storage.locations import VERSIONS
from iscp.system.failpoints import VARIABLE
from iscp.system.threads import SystemClock
from tests.fakes.guards import EndingGuard, OpenGuard, ScriptedFailpoints
from tests.fakes.s3 import FakeS3
from tests.selection import in_full

from .conftest import Pipeline
from .indexing import Indexing, documents

STEPS = (
    "index.fragments",
    "index.commit.before",
    "index.commit.after",
    "deletion.began",
    "deletion.rows_gone",
    "deletion.over",
)
KINDS = ("fulltext", "search")
REST_BYTES_MAX = 16_384


class Died(BaseException):
    """Ends a deletion as the end of its process would."""


def die() -> None:
    raise Died


def never() -> SparkAccess:
    raise AssertionError("Spark was started")


@pytest.fixture
def indexing(tmp_path: Path) -> Indexing:
    made = Indexing(Pipeline(tmp_path, DeferredSpark(never, local=True), DIRECT_BYTES_MAX))
    made.replace_source(texts(list(range(40)), 0))
    return made


def texts(numbers: list[int], turn: int) -> pa.Table:
    """Return documents without vectors of their own, which Spark alone reads."""
    return documents(numbers, turn).drop_columns(["embedding"])


def remove(indexing: Indexing, job: JobRow, guard: Guard | None = None) -> JobOutcome:
    iteration = Iteration(99, job.key.table_id, indexing.source, (job,), purpose=Purpose.DELETE)
    (outcome,) = indexing.runner.run(iteration, guard or OpenGuard())
    return outcome


def built(indexing: Indexing, kind: str = "search", **named: str) -> JobRow:
    job = indexing.job(kind, **named)  # type: ignore[arg-type]
    for turn in (0, 1):
        indexing.upsert(texts([1, 2, 3], turn))
        (outcome,) = indexing.run(job)
        assert outcome.error_msg == ""
        job = job._replace(watermark=outcome.watermark, seq=outcome.seq)
    return job


def place_of(job: JobRow) -> Path:
    return Path(job.spec.consumer.target)


def files_in(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}


def assert_gone(job: JobRow) -> None:
    """Assert that an index is gone, but for the version that says so."""
    place = place_of(job)
    with pytest.raises(InvalidRequest, match="it was deleted with its job"):
        search(str(place), "apache")
    with pytest.raises(InvalidRequest, match="it was deleted with its job"):
        read_overview(str(place))
    found = files_in(place)
    assert {path.split("/")[0] for path in found} == {"data", VERSIONS, "_transactions"}
    assert len(found) == 4
    assert sum((place / path).stat().st_size for path in found) < REST_BYTES_MAX


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_is_gone_and_the_next_one_at_its_place_starts_clean(indexing: Indexing, kind: str) -> None:
    job = built(indexing, kind)
    shutil.copytree(indexing.source, f"{indexing.source}-away")
    shutil.rmtree(indexing.source)
    outcome = remove(indexing, job)
    assert (outcome.ok, outcome.seq, outcome.warning) == (True, job.seq + 1, "")
    assert_gone(job)
    assert remove(indexing, job).ok, "whoever did not hear of it does it again"
    assert_gone(job)
    shutil.copytree(f"{indexing.source}-away", indexing.source)
    following = indexing.job(kind, registration=2)
    assert indexing.run(following)[0].error_msg == ""
    indexing.assert_equal(following)


def test_another_kind_may_follow_at_the_place(indexing: Indexing) -> None:
    job = built(indexing, "search", name="place")
    assert remove(indexing, job).ok
    following = indexing.job("fulltext", registration=2, name="place")
    assert indexing.run(following)[0].error_msg == ""
    indexing.assert_equal(following)


def test_an_index_that_was_never_made_is_gone_already(indexing: Indexing) -> None:
    job = indexing.job("search")
    assert remove(indexing, job).ok
    assert not place_of(job).exists()


@pytest.mark.parametrize("step", STEPS)
def test_a_deletion_that_died_is_carried_on_by_the_next(indexing: Indexing, step: str) -> None:
    job = built(indexing)
    for _ in range(2):
        indexing.failpoints.once(step, die)
        with pytest.raises(Died):
            remove(indexing, job)
    assert remove(indexing, job).ok
    assert_gone(job)


@pytest.mark.parametrize("step", in_full(("index.commit.before", "index.fragments")))
@pytest.mark.parametrize(("dies", "follows"), [(False, False), (True, False), (True, True)])
def test_what_was_under_way_for_the_job_comes_to_nothing(
    indexing: Indexing, step: str, dies: bool, follows: bool
) -> None:
    """A node that was given up on still has its commit to make when the index is deleted, or is another job's."""
    job = built(indexing)
    indexing.upsert(texts([1, 2], 7))
    following = indexing.job("search", registration=2)

    def delete_meanwhile() -> None:
        if dies:
            indexing.failpoints.once("deletion.rows_gone", die)
            with pytest.raises(Died):
                remove(indexing, job)
        else:
            assert remove(indexing, job).ok
        if follows:
            assert indexing.run(following)[0].error_msg == ""

    late = ScriptedFailpoints()
    late.once(step, delete_meanwhile)
    (outcome,) = indexing.run(job, runner=indexing.runner_with(late))
    assert outcome.error_code == ErrorCode.SUPERSEDED
    if follows:
        indexing.assert_equal(following)
    else:
        assert remove(indexing, job).ok
        with pytest.raises(InvalidRequest, match="it was deleted with its job"):
            search(str(place_of(job)), "apache")


@pytest.mark.parametrize("step", in_full(STEPS, ["deletion.rows_gone"]))
def test_a_deletion_whose_process_was_killed_is_carried_on_by_another(indexing: Indexing, step: str) -> None:
    job = built(indexing)
    killed = subprocess.run(
        [sys.executable, "-m", "tests.fakes.index_deletion_program"],
        env={**os.environ, VARIABLE: f"{step}=kill:1"},
        input=json.dumps([job.key.job_name, job.job_id, job.spec_json, indexing.source]) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert remove(indexing, job).ok
    assert_gone(job)


def test_an_index_on_s3_goes_and_the_next_one_at_its_place_starts_clean(s3: FakeS3) -> None:
    spark = DeferredSpark(never, local=True)
    indexing = Indexing(Pipeline(s3.uri("removed"), spark, DIRECT_BYTES_MAX))
    indexing.overwrite_source(texts(list(range(40)), 0))
    job = built(indexing)
    root = job.spec.consumer.target
    files.create(f"{root}/data/mine.lance", b"mine")
    indexing.failpoints.once("deletion.rows_gone", die)
    with pytest.raises(Died):
        remove(indexing, job)
    assert remove(indexing, job).warning == f"left where the target was: {root}/data/mine.lance"
    assert len([*files.names_below(root, 100)]) <= 7
    following = indexing.job("search", registration=2)
    indexing.upsert(texts([1, 2], 5))
    late = ScriptedFailpoints()
    late.once("index.commit.before", lambda: indexing.run(following))
    indexing.run(following, runner=indexing.runner_with(late))
    assert indexing.run(following)[0].error_msg == ""
    indexing.assert_equal(following)
    assert remove(indexing, following).ok  # what has lost stays, as the store's times have whole seconds
    with pytest.raises(InvalidRequest, match="it was deleted with its job"):
        search(root, "apache")


def test_maintenance_that_was_under_way_comes_to_nothing(indexing: Indexing) -> None:
    job = built(indexing)
    store = indexing.store(job)
    assert remove(indexing, job).ok
    assert maintain(store, MaintenanceLimits(keep_s=0.0), SystemClock(), ScriptedFailpoints(), 9.0).actions == ()
    assert_gone(job)


def test_what_others_have_put_there_stays_and_is_named(indexing: Indexing) -> None:
    job = built(indexing)
    place = place_of(job)
    foreign = ["data/mine.lance", "notes.txt", "_versions/readme", "_iscp/words.txt"]
    for name in foreign:
        (place / name).write_text("mine")
    outcome = remove(indexing, job)
    assert outcome.warning.startswith("left where the target was: ")
    assert f"{place}/notes.txt" in outcome.warning or "and 1 more files" in outcome.warning
    assert [(place / name).read_text() for name in foreign] == ["mine"] * 4


def test_a_file_that_is_younger_than_the_deletion_stays(indexing: Indexing) -> None:
    """Somebody writes it for a commit which nobody has seen yet."""
    job = built(indexing)
    late = place_of(job) / "data" / f"{'01' * 12}{'a' * 26}.lance"
    late.write_bytes(b"mine")
    os.utime(late, (2e9, 2e9))
    assert str(late) in remove(indexing, job).warning
    os.utime(late, (1e9, 1e9))
    assert remove(indexing, job).warning == ""
    assert_gone(job)


def test_what_a_build_has_staged_goes_too(indexing: Indexing) -> None:
    job = built(indexing)
    marks = place_of(job) / "_iscp-build" / job.job_id / "4-digest"
    marks.mkdir(parents=True)
    (marks / "begun.json").write_text("{}")
    assert remove(indexing, job).warning == ""
    assert_gone(job)
    assert not (place_of(job) / "_iscp-build").exists()


def later_registration(indexing: Indexing, job: JobRow) -> None:
    indexing.run(indexing.job("search", registration=2))


def rows_of_others(indexing: Indexing, job: JobRow) -> None:
    dataset = lance.dataset(str(place_of(job)))
    lance.write_dataset(dataset.to_table().slice(0, 1), str(place_of(job)), mode="append")


def tag_of_others(indexing: Indexing, job: JobRow) -> None:
    lance.dataset(str(place_of(job))).tags.create("mine", 2)


def table_within(indexing: Indexing, job: JobRow) -> None:
    log = place_of(job) / "sub" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("{}")


def dataset_within(indexing: Indexing, job: JobRow) -> None:
    lance.write_dataset(pa.table({"a": [1]}), str(place_of(job) / "data" / "sub"))


def table_beside(indexing: Indexing, job: JobRow) -> None:
    log = place_of(job) / "_delta_log"
    log.mkdir()
    (log / "00000000000000000000.json").write_text("{}")


@pytest.mark.parametrize(
    ("others", "why"),
    [
        (later_registration, "was kept last by the registration search-2"),
        (rows_of_others, "others have written to|it has 2 heads"),
        (tag_of_others, "has tags or branches of others"),
        (table_within, "/sub lies within"),
        (dataset_within, "/data/sub lies within"),
        (table_beside, "search lies within"),
    ],
)
def test_what_is_not_the_jobs_alone_is_left_as_it_is(
    indexing: Indexing, others: Callable[[Indexing, JobRow], None], why: str
) -> None:
    job = built(indexing)
    others(indexing, job)
    before = files_in(place_of(job))
    with pytest.raises((PermanentError, InvalidRequest), match=why) as refused:
        remove(indexing, job)
    assert refused.value.remedy
    assert files_in(place_of(job)) == before


def test_a_dataset_that_iscp_did_not_write_stays(indexing: Indexing) -> None:
    job = indexing.job("search")
    lance.write_dataset(pa.table({"a": [1]}), str(place_of(job)))
    before = files_in(place_of(job))
    with pytest.raises(InvalidRequest, match="that iscp did not write"):
        remove(indexing, job)
    assert files_in(place_of(job)) == before


def test_an_index_of_another_job_stays(indexing: Indexing) -> None:
    job = built(indexing)
    other = indexing.job("search", registration=7)
    with pytest.raises(PermanentError, match="was kept last by the registration search-1"):
        remove(indexing, other)
    indexing.assert_equal(job)


def test_nothing_more_is_deleted_once_the_lease_is_gone(indexing: Indexing) -> None:
    lost = LeaseLost("the lease is gone")
    job = built(indexing)
    before = files_in(place_of(job))
    with pytest.raises(LeaseLost):
        remove(indexing, job, EndingGuard(1, lost))
    indexing.assert_equal(job)
    with pytest.raises(LeaseLost):
        remove(indexing, job, EndingGuard(2, lost))
    assert before <= files_in(place_of(job)), "the commit is there, and all else too"
    assert remove(indexing, job).ok
    assert_gone(job)


def test_a_deletion_goes_on_behind_another_commit_of_the_deleted_index(indexing: Indexing) -> None:
    """The maintenance of a node of the release before changes the head of whatever it finds."""
    job = built(indexing)

    def commit() -> None:
        indexing.store(job).begin().commit("maintain the index")

    indexing.failpoints.once("deletion.began", commit)
    outcome = remove(indexing, job)
    assert outcome.ok
    assert outcome.usage is not None
    assert outcome.usage.conflicts == 1
    assert_gone(job)


def test_kinds_of_indexes_delete_their_targets(indexing: Indexing) -> None:
    kinds: list[ConsumerKind] = [indexing.kinds(kind) for kind in (*KINDS, "vector")]
    assert all(kind.delete_target is not None for kind in kinds)


@pytest.mark.parametrize("kind", KINDS)
def test_a_search_that_has_begun_before_is_refused(indexing: Indexing, kind: str) -> None:
    job = built(indexing, kind)
    request = SearchRequest(str(place_of(job)), text="apache lake")
    searched = SearchedIndex(open_index(request.uri))
    shown = shown_columns(searched, None)
    indexing.failpoints.once("deletion.rows_gone", die)
    with pytest.raises(Died):
        remove(indexing, job)
    begun = HybridSearch(searched, request, own_embedder)
    with pytest.raises(StorageError, match=r"is gone|cannot read|Not found"):
        FoundHits(searched, shown, begun.query, None).of(begun.found(), False)
