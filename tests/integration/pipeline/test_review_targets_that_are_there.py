"""A target that was made before is refused where published files would not be read as they were written."""

from __future__ import annotations

import pytest

from iscp.core.errors import ErrorCode, InvalidRequest

from .conftest import Pipeline

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
    pipeline.run(job)
    pipeline.sql(
        f"ALTER TABLE delta.`{pipeline.target('target')}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    later = job._replace(job_id=job.job_id + "-later")
    assert pipeline.run(later)[0].error_code == ErrorCode.TARGET_UNUSABLE
    pipeline.assert_equal_by_spark("target")
