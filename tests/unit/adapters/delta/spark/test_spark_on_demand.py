"""The JVM starts once, for whoever is first, and never again after its end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from iscp.adapters.delta.selftest.self_test import SelfTestError
from iscp.adapters.delta.spark.session import SparkRuntime
from iscp.adapters.delta.spark.spark_on_demand import SparkOnDemand
from iscp.core.errors import EngineError


class FakeRuntime:
    root = "root"

    def __init__(self) -> None:
        self.ended: list[str] = []

    def new_session(self) -> str:
        return "session"

    def alive(self) -> bool:
        return not self.ended

    def kill(self) -> None:
        self.ended.append("killed")

    def stop(self) -> None:
        self.ended.append("stopped")


class FakeLaunch:
    """`begun` tells that a start has begun, which goes on when `may_end`."""

    def __init__(self) -> None:
        self.faults: list[Exception] = []
        self.started: list[FakeRuntime] = []
        self.released = False
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()

    def start(self) -> SparkRuntime:
        self.begun.set()
        assert self.may_end.wait(30)
        if self.faults:
            raise self.faults.pop()
        self.started.append(FakeRuntime())
        return cast(SparkRuntime, self.started[-1])

    def release(self) -> None:
        self.released = True


def nothing(root: Any) -> None:
    """What is to be done at the start."""


def test_many_who_need_it_at_once_start_one() -> None:
    launch, seen = FakeLaunch(), list[object]()
    spark = SparkOnDemand(launch, seen.append)
    assert (spark.running, spark.alive()) == (False, True)
    with ThreadPoolExecutor(8) as pool:
        assert {str(made) for made in pool.map(lambda _: spark.new_session(), range(8))} == {"session"}
    assert (len(launch.started), seen, spark.running) == (1, ["root"], True)
    spark.stop()
    assert launch.started[0].ended == ["stopped"]
    assert not spark.alive()


def test_a_start_that_failed_is_tried_again() -> None:
    launch = FakeLaunch()
    launch.faults = [EngineError("no memory")]
    spark = SparkOnDemand(launch, nothing)
    with pytest.raises(EngineError, match="no memory"):
        spark.start()
    assert spark.alive()
    assert str(spark.new_session()) == "session"


def test_one_that_is_refused_ends_for_good_and_nobody_gets_a_session() -> None:
    launch = FakeLaunch()

    def refuse(root: object) -> None:
        raise SelfTestError("excludes only writers of its own JVM", field="spark.conf", remedy="Take it out")

    spark = SparkOnDemand(launch, refuse)
    for message in "Take it out", "has ended":
        with pytest.raises(EngineError, match=message):
            spark.new_session()
        assert (spark.running, spark.alive()) == (False, False)
    assert [each.ended for each in launch.started] == [["killed"]]


def test_what_never_started_is_stopped_and_starts_no_more() -> None:
    launch = FakeLaunch()
    spark = SparkOnDemand(launch, nothing)
    spark.stop()
    assert launch.released
    assert not spark.alive()
    with pytest.raises(EngineError):
        spark.start()


def test_a_kill_does_not_wait_for_a_start_that_hangs_and_ends_what_comes_of_it() -> None:
    launch = FakeLaunch()
    launch.may_end.clear()
    spark = SparkOnDemand(launch, nothing)
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(spark.new_session)
        assert launch.begun.wait(30)
        spark.kill()
        assert not spark.alive()
        launch.may_end.set()
        with pytest.raises(EngineError, match="has ended"):
            starting.result(30)
    assert [each.ended for each in launch.started] == [["killed"]]
