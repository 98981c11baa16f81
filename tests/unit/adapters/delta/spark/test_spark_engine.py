"""Labels and cancellations of threads that may or may not come to need Spark."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from iscp.adapters.delta.spark.spark_engine import SparkEngine
from iscp.core.errors import Canceled


class FakeConf:
    getAll: dict[str, str] = {}  # noqa: N815, RUF012  (as pyspark names it)

    def set(self, name: str, value: str) -> None:
        """A session's setting."""


class FakeSpark:
    """A Spark that starts with its first session; `groups` are the job groups that were named, in order."""

    conf = FakeConf()

    def __init__(self) -> None:
        self.running = False
        self.groups: list[str] = []
        self.canceled: list[str] = []
        self.made = 0

    @property
    def root(self) -> SparkSession:
        self.running = True
        return cast(SparkSession, self)

    def new_session(self) -> SparkSession:
        self.made += 1
        return self.root

    @property
    def sparkContext(self) -> Any:  # noqa: N802  (as pyspark names it)
        return self

    _jsc = property(lambda self: self)

    def sc(self) -> Any:
        return self

    def setJobGroup(self, group: str, *_: str, **options: bool) -> None:  # noqa: N802
        assert options == {"interruptOnCancel": False}, "a thread that writes is not to be interrupted"
        self.groups.append(group)

    def cancelJobGroupAndFutureJobs(self, group: str) -> None:  # noqa: N802
        self.canceled.append(group)


def test_spark_is_not_started_for_who_does_not_open_the_session() -> None:
    spark = FakeSpark()
    engine = SparkEngine(spark)
    engine.label("one")
    with engine.session():
        pass
    engine.cancel("one")
    assert (spark.running, spark.made, spark.groups) == (False, 0, [])


def test_the_label_is_named_with_the_first_session_and_each_later_one_at_once() -> None:
    spark = FakeSpark()
    engine = SparkEngine(spark)
    engine.label("one")
    with engine.session() as open_session:
        assert open_session() is open_session()
    assert spark.groups == ["one"]
    engine.label("two")
    assert spark.groups == ["one", "two"]
    with engine.session() as open_session:
        open_session()
    assert (spark.groups, spark.made) == (["one", "two"], 1), "a session that was given back is lent again"


def test_what_was_canceled_before_it_came_to_spark_gets_no_session() -> None:
    spark = FakeSpark()
    engine = SparkEngine(spark)
    engine.label("one")
    engine.cancel("one")
    with engine.session() as open_session, pytest.raises(Canceled):
        open_session()
    assert spark.groups == []
    engine.label("two")
    with engine.session() as open_session:
        open_session()
    engine.cancel("two")
    assert (spark.groups, spark.canceled) == (["two"], ["two"])
