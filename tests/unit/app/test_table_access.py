"""Places are tested without Spark as long as nothing needs it, and with it before it writes there."""

from __future__ import annotations

from pathlib import Path

import pytest

from iscp.app.table_access import check_of_targets
from iscp.delta.selftest.self_test import SCRATCH_PREFIX, SelfTestError, kind_of
from iscp.model.values.errors import StorageError
from iscp.spark.deferred_spark import DeferredSpark
from tests.fakes.late_spark import FakeSpark


class RefusingRoot:
    """A session with which no test of a place gets far."""

    @property
    def sparkContext(self) -> object:  # noqa: N802
        raise StorageError("tested with Spark")


def refusing() -> FakeSpark:
    spark = FakeSpark()
    spark.root = RefusingRoot()
    return spark


def test_a_target_passes_without_spark(tmp_path: Path) -> None:
    spark = DeferredSpark(refusing, local=True)
    check = check_of_targets(spark, ())
    target = f"{tmp_path}/a/target"
    assert check(target) == target
    assert check(f"{tmp_path}/b") == f"{tmp_path}/b"
    assert not spark.started
    assert not list(tmp_path.rglob(f"{SCRATCH_PREFIX}*")), "nothing is left"


def test_spark_is_tested_at_its_start_where_targets_have_passed(tmp_path: Path) -> None:
    real = refusing()
    spark = DeferredSpark(lambda: real, local=True)
    check_of_targets(spark, ())(f"{tmp_path}/target")
    with pytest.raises(StorageError, match="tested with Spark"):
        spark.root.conf  # noqa: B018
    assert (real.ended, spark.started, spark.alive()) == (["kill"], False, False)


def test_spark_that_has_started_is_what_further_places_are_tested_with(tmp_path: Path) -> None:
    real = refusing()
    spark = DeferredSpark(lambda: real, local=True)
    check = check_of_targets(spark, ())
    assert spark.new_session().version == "session 0", "no place was tested before"
    with pytest.raises(StorageError, match="tested with Spark"):
        check(f"{tmp_path}/target")
    with pytest.raises(StorageError, match="tested with Spark"):
        check(f"{tmp_path}/target")


def test_a_kind_that_was_tested_before_is_not_tested(tmp_path: Path) -> None:
    target = f"{tmp_path}/target"
    assert check_of_targets(refusing(), {kind_of(target, "f")})(target) == target


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    target = f"{tmp_path}/{'x' * 300}/target"
    with pytest.raises(SelfTestError):
        check_of_targets(DeferredSpark(refusing, local=True), ())(target)
