"""A target that was made before is refused where published files would not be read as they were written."""

from __future__ import annotations

import shutil

import pytest
from deltalake import DeltaTable, write_deltalake

from iscp.model.values.errors import ErrorCode, InvalidRequest
from tests.fakes.guards import ScriptedFailpoints

from .conftest import Pipeline, rows

pytestmark = pytest.mark.spark


def made(pipeline: Pipeline, partitions: str = "", properties: str = "x = 1") -> None:
    pipeline.sql(
        f"CREATE TABLE delta.`{pipeline.target('target')}` (id BIGINT, v STRING, g BIGINT) USING delta {partitions}"
        f" TBLPROPERTIES ({properties})"
    )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"partitions": "PARTITIONED BY (g)"}, "partitioned by g"),
        ({"properties": "delta.columnMapping.mode = 'name'"}, "maps its columns"),
        ({"properties": "delta.enableRowTracking = true"}, "tracks rows"),
        ({"properties": "delta.enableInCommitTimestamps = true"}, "keeps times in its commits"),
    ],
)
def test_it_is_refused_at_the_registration_and_at_the_claim(
    pipeline: Pipeline, how: dict[str, str], words: str
) -> None:
    job = pipeline.job("target", key=("id",))
    made(pipeline, **how)
    with pytest.raises(InvalidRequest, match=words):
        pipeline.job("target", key=("id",))
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, words in outcome.error_msg) == (ErrorCode.TARGET_UNUSABLE, True)


def test_an_empty_one_without_all_that_is_taken(pipeline: Pipeline) -> None:
    made(pipeline)
    pipeline.run(pipeline.job("target", key=("id",)))
    pipeline.assert_equal("target")


def test_one_that_has_become_so_since_is_never_published_to(pipeline: Pipeline) -> None:
    job = pipeline.job("target", key=("id",))
    pipeline.build(job)
    pipeline.sql(
        f"ALTER TABLE delta.`{pipeline.target('target')}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    later = job._replace(job_id=job.job_id + "-later")
    assert pipeline.run(later)[0].error_code == ErrorCode.TARGET_UNUSABLE
    pipeline.assert_equal_by_spark("target")


def test_somebodys_table_that_came_to_be_after_the_registration_is_left_alone(pipeline: Pipeline) -> None:
    job, uri = pipeline.job("target", key=("id",)), pipeline.target("target")
    write_deltalake(uri, rows(range(3), "theirs"))
    (outcome,) = pipeline.run(job)
    assert (outcome.error_code, "iscp did not write" in outcome.error_msg) == (ErrorCode.TARGET_UNUSABLE, True)
    assert DeltaTable(uri).version() == 0
    assert DeltaTable(uri).to_pyarrow_table()["v"].to_pylist() == ["theirs"] * 3
    shutil.rmtree(uri)  # as the remedy says
    assert pipeline.run(job)[0].ok
    pipeline.assert_equal("target")


def test_a_claim_that_nobody_heard_of_is_found_by_the_next_attempt(pipeline: Pipeline) -> None:
    """Dead right after it made the table; and another registration may take it over all the same."""

    def die() -> None:
        raise RuntimeError("died")

    job, later = pipeline.job("target", key=("id",)), pipeline.job("target", 2, key=("id",))
    for each in (job, job, later):
        pipeline.failpoints.once("snapshot.before", die)
        assert not pipeline.run(each)[0].ok
    assert pipeline.run(later, runner=pipeline.new_runner(ScriptedFailpoints()))[0].ok
    pipeline.assert_equal("target")


def test_a_job_that_was_built_has_its_place_and_rebuilds_what_became_of_it(pipeline: Pipeline) -> None:
    job, uri = pipeline.job("target", key=("id",)), pipeline.target("target")
    outcome = pipeline.build(job)[0]
    shutil.rmtree(uri)
    write_deltalake(uri, rows(range(3), "theirs"))
    assert pipeline.run(job._replace(seq=outcome.seq, watermark=outcome.watermark))[0].ok
    pipeline.assert_equal("target")


def test_a_target_within_a_table_is_refused(pipeline: Pipeline) -> None:
    pipeline.build(pipeline.job("target", key=("id",)))
    with pytest.raises(InvalidRequest, match="within the directory of the table"):
        pipeline.job("target/inner", key=("id",))
