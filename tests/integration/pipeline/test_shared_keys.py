"""Rows that share a key are never taken for one another, in however many versions they came."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iscp.model.job.iteration import DataType
from iscp.model.spec.spec import OnDuplicate
from iscp.model.values.errors import ErrorCode
from tests.selection import in_full

from .conftest import SPARK_IN_FULL, Pipeline
from .test_dead_letters import assert_split

pytestmark = pytest.mark.spark


def beside_one_that_is_there(pipeline: Pipeline) -> None:
    pipeline.insert([3], "again")
    pipeline.upsert([7], "so that there is a merge")


def inserted_once_more_alone(pipeline: Pipeline) -> None:
    pipeline.insert([3], "again")


def one_of_several_deleted(pipeline: Pipeline) -> None:
    pipeline.insert([500], "a")
    pipeline.insert([500], "b")
    pipeline.insert([500], "c")
    pipeline.delete("id = 500 AND v = 'b'")


@pytest.mark.parametrize("event", in_full([beside_one_that_is_there, inserted_once_more_alone, one_of_several_deleted]))
def test_shared_keys_are_refused_and_followed_once_they_are_repaired(
    pipeline: Pipeline, event: Callable[[Pipeline], None]
) -> None:
    stop = {"on_duplicate": OnDuplicate.STOP}
    small, large = (pipeline.job(name, key=("id",), policies=stop) for name in ("small", "large"))
    by_spark = pipeline.new_runner(pipeline.failpoints, small_bytes_max=-1)
    pipeline.build(small, large)
    event(pipeline)
    for outcome in [*pipeline.run(small), *pipeline.run(large, runner=by_spark)]:
        assert (outcome.error_code, outcome.watermark.version) == (ErrorCode.DUPLICATE_KEY, 0)
    pipeline.delete("id = 500 OR (id = 3 AND v = 'again')")
    for outcome in [*pipeline.run(small), *pipeline.run(large, runner=by_spark)]:
        assert outcome.error_code == 0, outcome.error_msg
    pipeline.assert_equal("small")
    pipeline.assert_equal("large")


@SPARK_IN_FULL
def test_conflicts_of_keys_cost_what_the_keys_cost(pipeline: Pipeline) -> None:
    """No comparison of the tables: the source's rows of the changed keys show what is left of them."""
    jobs = [
        pipeline.job("full", key=("id",)),
        pipeline.job("some", key=("id",), where="g < 5", columns=("id", "v", "g")),
    ]
    pipeline.build(*jobs)
    changes: list[tuple[Callable[[], object], int, int]] = [
        (lambda: pipeline.insert([1, 2, 3, 5, 500], "again"), 8, 6),
        (lambda: pipeline.insert([1, 501], "a third time"), 9, 7),
        (lambda: pipeline.upsert([10, 70], "of other keys"), 9, 7),
        (lambda: pipeline.delete("id IN (1, 2) AND v <> 'x'"), 4, 2),
        (lambda: pipeline.delete("id = 3"), 2, 0),
        (lambda: pipeline.delete("v = 'again'"), 0, 0),
    ]
    for change, *dead in changes:
        change()
        for job, outcome, count, below in zip(jobs, pipeline.run(*jobs), dead, (2**31, 5), strict=True):
            assert_split(pipeline, job, outcome, dead=count, below=below)
            assert (outcome.data_type, outcome.strategy_reason) == (DataType.TAIL, "")
