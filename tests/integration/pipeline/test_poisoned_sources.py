"""What a hostile account leaves in its tables, as jobs meet it, Spark included: an error of this table, by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.spark.session import SparkRuntime
from iscp.storage.regular_files import REACH
from tests.fakes import poisoned_tables
from tests.fakes.poisoned_tables import ODD_IDS, SECRET, Poison, table_in, with_id
from tests.selection import in_full

from .conftest import BY_SPARK, SPARK_IN_FULL, Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

FOLLOWED_BY_SPARK: tuple[Poison, ...] = (
    poisoned_tables.path_by_encoded_dots,
    poisoned_tables.dots_in_a_checkpoint,
    poisoned_tables.path_by_a_link,
    poisoned_tables.link_as_data_file,
    poisoned_tables.change_data_by_dots,
    poisoned_tables.nested_data_file,
    poisoned_tables.device_as_vector,
    poisoned_tables.vector_by_dots,
    poisoned_tables.bitmap_far_away,
)
REST = tuple(each for each in poisoned_tables.POISONS if each not in FOLLOWED_BY_SPARK)
HARMLESS = ("change_data_by_dots", "huge_bitmap")
"""The file does not count in whole versions; Spark keeps the bitmap as it is stored."""
NAMED = (ErrorCode.LOG_CORRUPT, ErrorCode.STORAGE, ErrorCode.FILE_LOST, ErrorCode.ENGINE)


@pytest.fixture
def poisoned(pipeline: Pipeline, tmp_path: Path) -> Callable[[Poison], None]:
    """The pipeline's source is a table that may be poisoned, with somebody else's beside it."""
    pipeline.source, elsewhere = table_in(tmp_path / "lake")
    return lambda poison: poison(pipeline.source, elsewhere)


def held(uri: str) -> list[str]:
    """The texts of a target, where there is one."""
    if not Path(uri, "_delta_log").exists():
        return []
    return [str(text) for text in DeltaTable(uri).to_pyarrow_table()["v"].to_pylist()]


@SPARK_IN_FULL
@pytest.mark.parametrize("poison", [*FOLLOWED_BY_SPARK, *in_full(REST)], ids=lambda each: each.__name__)
def test_a_job_fails_by_name_and_reads_nothing_of_others(
    pipeline: Pipeline, poisoned: Callable[[Poison], None], spark_runtime: SparkRuntime, poison: Poison
) -> None:
    """One that follows the table, and one that is to be built."""
    job, late = pipeline.job("followed", key=("id",)), pipeline.job("late", key=("id",))
    assert pipeline.run(job)[0].ok
    poisoned(poison)
    other = pipeline.new_runner(pipeline.failpoints)
    (followed,), (built,) = pipeline.run(job), pipeline.run(late, runner=other)
    assert spark_runtime.alive()
    assert SECRET not in held(pipeline.target("followed")) + held(pipeline.target("late"))
    assert built.ok == (poison.__name__ in HARMLESS)
    for outcome in (followed, built):  # one that has followed the table may read nothing that is poisoned
        if not outcome.ok:
            assert outcome.error_code in NAMED, outcome.error_msg
            named = pipeline.source in outcome.error_msg or "in the table's log" in outcome.error_msg
            assert named or "StackOverflowError" in outcome.error_msg


@pytest.fixture
def reach_ends() -> Iterator[None]:
    yield
    REACH.limit(())


@SPARK_IN_FULL
@pytest.mark.usefixtures("reach_ends")
def test_an_absolute_path_goes_as_far_as_the_accounts_roots(
    pipeline: Pipeline, poisoned: Callable[[Poison], None], tmp_path: Path
) -> None:
    job, late = pipeline.job("followed", key=("id",)), pipeline.job("late", key=("id",))
    assert pipeline.run(job)[0].ok
    poisoned(poisoned_tables.absolute_path)
    REACH.limit([[str(tmp_path / "lake" / "evil"), str(tmp_path)], [str(tmp_path / "lake" / "evil")]])
    for outcome in (*pipeline.run(job), *pipeline.run(late)):
        assert outcome.error_code is ErrorCode.OUTSIDE_ROOTS, outcome.error_msg
    assert SECRET not in held(pipeline.target("followed")) + held(pipeline.target("late"))
    REACH.limit([[str(tmp_path)]])
    assert [outcome.error_msg for outcome in (*pipeline.run(job), *pipeline.run(late))] == ["", ""]
    assert SECRET in held(pipeline.target("followed"))


@BY_SPARK
@pytest.mark.parametrize("table_id", ODD_IDS, ids=lambda each: each[:12] or "empty")
def test_a_table_with_an_odd_id_is_refused_and_one_that_gets_it_fails_for_good(
    pipeline: Pipeline, poisoned: Callable[[Poison], None], table_id: str
) -> None:
    job = pipeline.job("followed", key=("id",))
    assert pipeline.run(job)[0].ok
    poisoned(with_id(table_id))
    with pytest.raises(InvalidRequest, match="a Delta table's id is a UUID") as raised:
        DeltaCatalog().describe(pipeline.source)
    assert raised.value.code is ErrorCode.TABLE_UNREADABLE
    assert len(str(raised.value)) < 300
    other = pipeline.new_runner(pipeline.failpoints)
    for outcome in (*pipeline.run(job, runner=other), *pipeline.run(job, runner=other)):
        assert outcome.error_code is ErrorCode.TABLE_UNREADABLE, outcome.error_msg
        assert "a Delta table's id is a UUID" in outcome.error_msg


@BY_SPARK
def test_a_job_whose_table_has_an_odd_id_as_a_former_version_took_it_fails_alone(
    pipeline: Pipeline, poisoned: Callable[[Poison], None]
) -> None:
    job = pipeline.job("before", key=("id",))
    poisoned(with_id("../a/b"))
    before = job._replace(key=job.key._replace(table_id="../a/b"))
    (outcome,) = pipeline.run(before)
    assert outcome.error_code is ErrorCode.TABLE_UNREADABLE, outcome.error_msg
    assert json.loads(before.spec_json)
