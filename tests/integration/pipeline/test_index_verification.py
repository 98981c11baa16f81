"""A verification of an index searches for samples: segments of other rows than the index has are found and repaired."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lance.bitmap import Bitmap

from iscp.consumers.index.index_check import sampled_faults
from iscp.engine.iteration_ports import CONFLICT_TRIES_MAX
from iscp.index.lance.index_columns import KEY_INDEX, VECTOR_INDEX, words_index
from iscp.index.lance.index_store import OpenIndex, build_segments, commit_segments, segments_of
from iscp.index.maintenance.index_shape import fragments_of
from iscp.model.job.iteration import Purpose
from iscp.model.job.job_row import JobRow
from iscp.system.threads import retry_conflicts

from .conftest import Pipeline
from .indexing import Indexing, documents

pytestmark = pytest.mark.spark

NAMES = {"fulltext": [KEY_INDEX, words_index(0), words_index(1)], "vector": [KEY_INDEX, VECTOR_INDEX]}


@pytest.fixture
def indexing(pipeline: Pipeline) -> Indexing:
    return Indexing(pipeline)


def covered(indexing: Indexing, job: JobRow) -> OpenIndex:
    """Run a job, and cover the rows of its index by segments, which so few would never have."""
    indexing.run(job)
    at = indexing.index(job)
    present = [each.fragment_id for each in at.dataset.get_fragments()]
    commit_segments(at, build_segments(at, dict.fromkeys(NAMES[job.spec.consumer.kind], present), "cosine"))
    indexing.upsert(documents([1, 2, 77], turn=3))
    indexing.delete("id BETWEEN 20 AND 24")
    indexing.run(job)
    return indexing.index(job)


def misbuild(at: OpenIndex, name: str) -> None:
    """Have the segment of an index be one of the newest rows alone, that says it covers all."""
    replaced = [each for each in segments_of(at.dataset) if each.name == name]
    present = fragments_of(at)
    newest = max(present)
    (built,) = build_segments(at, {name: [newest]}, "cosine")
    commit_segments(at, [replace(built, fragment_ids=Bitmap(present))], replaced)


def faulty_parts(indexing: Indexing, job: JobRow) -> set[str]:
    return {fault.index for fault in sampled_faults(indexing.index(job))}


@pytest.mark.parametrize("kind", ["fulltext", "vector"])
def test_segments_of_the_rows_themselves_are_right(indexing: Indexing, kind: str) -> None:
    job = indexing.job(kind)
    at = covered(indexing, job)
    assert {each.name for each in segments_of(at.dataset)} == {*NAMES[kind]}
    assert not sampled_faults(at)
    assert indexing.verify(job).equal


@pytest.mark.parametrize(
    ("kind", "name"), [("fulltext", words_index(1)), ("vector", VECTOR_INDEX), ("vector", KEY_INDEX)]
)
@pytest.mark.slow(but=1)
def test_a_segment_of_other_rows_is_found_out_and_built_again(indexing: Indexing, kind: str, name: str) -> None:
    job = indexing.job(kind)
    retry_conflicts(lambda: misbuild(covered(indexing, job), name), CONFLICT_TRIES_MAX)  # with upkeep after commits
    assert faulty_parts(indexing, job) == {name}
    report = indexing.verify(job)
    assert not report.equal
    assert report.comparison.different > 0
    if name != KEY_INDEX:  # by which rows are looked up that are compared
        assert (report.comparison.missing, report.comparison.extra) == (0, 0)
    assert indexing.verify(job, Purpose.REPAIR).repaired
    assert indexing.verify(job).equal
    assert faulty_parts(indexing, job) == set()
    assert name in {each.name for each in segments_of(indexing.assert_equal(job).dataset)}
