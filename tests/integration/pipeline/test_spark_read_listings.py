"""A log that Spark lists while others write to it, or clean it: no commit of a range is passed over."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.delta.source.spark_read import load_changed_rows, load_version
from iscp.model.job.iteration import DataType
from iscp.model.values.watermark import Watermark
from iscp.ports.source import ChangesUnavailableError, SourceRange
from tests.fakes.hidden_commits import commit, shown_when_doubted
from tests.integration.pipeline.conftest import BY_SPARK, ROWS, Pipeline

pytestmark = pytest.mark.spark
LAST = 4


@pytest.fixture
def appended(pipeline: Pipeline) -> Pipeline:
    """Versions 1 to LAST add a row each."""
    for version in range(1, LAST + 1):
        pipeline.insert([1_000 + version])
    return pipeline


def span(first: int) -> SourceRange:
    return SourceRange(first - 1, Watermark(LAST, 0.0), "t", from_at_s=0.0)


def with_checkpoint(pipeline: Pipeline) -> None:
    """Whoever opens the table does without the commits before it."""
    DeltaTable(pipeline.source).create_checkpoint()


@BY_SPARK
def test_a_commit_that_a_listing_left_out_is_found_by_a_later_one(appended: Pipeline) -> None:
    source = appended.source
    with appended.engine.session() as session, shown_when_doubted(source, LAST - 1) as hidden:
        assert load_version(session, source, LAST).count() == ROWS + LAST
        assert hidden.doubts == 1
    with appended.engine.session() as session, shown_when_doubted(source, LAST - 1) as hidden:
        assert load_changed_rows(session, source, span(1)).count() == LAST
        assert hidden.doubts == 1
    with_checkpoint(appended)
    for version in (1, LAST - 1):
        with appended.engine.session() as session, shown_when_doubted(source, version) as hidden:
            assert load_changed_rows(session, source, span(1)).count() == LAST
            assert hidden.doubts == 1


@BY_SPARK
@pytest.mark.parametrize("version", [1, 2], ids=["first", "between"])
def test_changes_of_a_commit_that_is_gone_are_not_passed_over(appended: Pipeline, version: int) -> None:
    """Delta reads those of the others and says nothing."""
    with_checkpoint(appended)
    commit(appended.source, version).unlink()
    with appended.engine.session() as session, pytest.raises(ChangesUnavailableError, match="1 of the versions 1 to 4"):
        load_changed_rows(session, appended.source, span(1))


@pytest.mark.further  # each time: changes that are gone above
@BY_SPARK
def test_a_log_that_is_cleaned_while_its_range_is_read_costs_a_comparison(pipeline: Pipeline) -> None:
    """As after a long pause: the commits behind the watermark are the next to be cleaned."""
    job = pipeline.job("j", key=("id",))
    assert pipeline.run(job)[0].ok
    for version in range(1, LAST + 1):
        pipeline.upsert([version, 100 + version], "new")
    with_checkpoint(pipeline)
    pipeline.failpoints.once("read.before", Path(commit(pipeline.source, 1)).unlink)
    (outcome,) = pipeline.run(job)
    assert (outcome.error_msg, outcome.watermark.version) == ("", LAST)
    assert outcome.data_type is not DataType.TAIL
    pipeline.assert_equal("j")
