"""Spark starts when a session is first used, once at most, and never once it was ended.

What the runner has said before Spark started holds once it has.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable

import pytest

from iscp.model.job.iteration import SparkNeed
from iscp.model.values.errors import EngineError, Unavailable
from iscp.ports.engine import UsageTally, invested_s, leave_to_spark, working_for
from iscp.spark.deferred_spark import DeferredEngine, DeferredSpark
from tests.fakes.clock import FakeClock
from tests.fakes.late_spark import FakeSession, FakeSpark

THREADS = 8


class Starter:
    """Counts its calls; `fault` is what it raises, and `gate` what it waits for."""

    def __init__(self, fault: Exception | None = None, before: Callable[[], None] = lambda: None) -> None:
        self.spark = FakeSpark()
        self.calls = 0
        self.fault = fault
        self.before = before

    def __call__(self) -> FakeSpark:
        self.calls += 1
        self.before()
        if self.fault is not None:
            raise self.fault
        return self.spark


def test_nothing_starts_before_an_attribute_of_a_session_is_read() -> None:
    start = Starter()
    spark = DeferredSpark(start, local=True)
    root, session = spark.root, spark.new_session()
    assert (spark.local, spark.started, start.calls) == (True, False, 0)
    assert not hasattr(session, "__arrow_c_stream__"), "who looks what it is starts nothing"
    assert copy.copy([root, session]) == [root, session]
    assert start.calls == 0
    assert vars(session.sparkContext) is vars(start.spark.context)
    assert (spark.started, start.calls, len(start.spark.sessions)) == (True, 1, 1)
    assert session.version == start.spark.sessions[0].version, "the same session at the second use"
    assert root.version == start.spark.root.version
    assert len(start.spark.sessions) == 1, "the root is none of the new ones"


def test_many_threads_start_it_once_and_share_a_session() -> None:
    start = Starter()
    spark = DeferredSpark(start, local=True)
    session, seen, gate = spark.new_session(), list[str](), threading.Barrier(THREADS)

    def use() -> None:
        gate.wait()
        seen.append(session.version)

    threads = [threading.Thread(target=use) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (start.calls, len(start.spark.sessions), len(seen), len(set(seen))) == (1, 1, THREADS, 1)


def test_the_error_of_the_start_is_that_of_all_who_need_spark() -> None:
    start = Starter(Unavailable("no jars"))
    spark = DeferredSpark(start, local=False)
    assert spark.alive(), "nothing has needed it"
    for session in (spark.root, spark.new_session()):
        with pytest.raises(Unavailable, match="no jars"):
            session.conf  # noqa: B018
    assert (start.calls, spark.started, spark.alive()) == (1, False, False)
    spark.stop()
    spark.kill()


@pytest.mark.parametrize("end", [DeferredSpark.stop, DeferredSpark.kill])
def test_nothing_starts_once_it_was_ended(end: Callable[[DeferredSpark], None]) -> None:
    start = Starter()
    spark = DeferredSpark(start, local=True)
    end(spark)
    with pytest.raises(EngineError, match="was stopped before it had started"):
        spark.root.conf  # noqa: B018
    assert (start.calls, spark.started) == (0, False)


@pytest.mark.parametrize("end", [DeferredSpark.stop, DeferredSpark.kill])
def test_what_is_starting_while_it_is_ended_is_killed(end: Callable[[DeferredSpark], None]) -> None:
    start = Starter()
    spark = DeferredSpark(start, local=True)
    start.before = lambda: end(spark)  # which does not wait for the start
    with pytest.raises(EngineError, match="while it started"):
        spark.root.conf  # noqa: B018
    assert start.spark.ended == ["kill"]


def test_started_spark_answers_for_itself() -> None:
    start = Starter()
    spark = DeferredSpark(start, local=True)
    spark.new_session().conf  # noqa: B018
    start.spark.lives = False
    assert not spark.alive()
    spark.stop()
    spark.kill()
    assert start.spark.ended == ["stop", "kill"]


def test_each_use_is_announced_on_its_thread_after_the_start() -> None:
    start, uses = Starter(), list[tuple[object, int]]()
    spark = DeferredSpark(start, local=True)
    spark.before_use = lambda there: uses.append((there, threading.get_ident()))
    session = spark.new_session()
    assert isinstance(session.conf, FakeSession.Conf)
    assert uses[0] == (start.spark, threading.get_ident())


def test_what_starts_spark_knows_when_that_is_given_up() -> None:
    start, known = Starter(), list[bool]()
    spark = DeferredSpark(start, local=True)

    def give_up() -> None:
        known.append(spark.given_up)
        spark.give_up()
        known.append(spark.given_up)

    start.before = give_up
    with pytest.raises(EngineError, match="while it started"):
        spark.root.conf  # noqa: B018
    assert (known, start.spark.ended) == ([False, True], ["kill"])


def test_spark_that_has_started_goes_on_when_starts_are_given_up() -> None:
    start = Starter()
    spark = DeferredSpark(start, local=True)
    spark.root.conf  # noqa: B018
    spark.give_up()
    spark.new_session().conf  # noqa: B018
    assert (start.spark.ended, spark.alive()) == ([], True)


def test_whoever_uses_it_is_noted_and_who_finds_none_has_started_it() -> None:
    clock, first, second, idle = FakeClock(), UsageTally(), UsageTally(), UsageTally()
    spark = DeferredSpark(Starter(), local=True)
    session = spark.new_session()
    with working_for(clock, [idle]):
        leave_to_spark("in vain")
    for tally in (first, second):
        with working_for(clock, [tally]):
            leave_to_spark("a filter")
            assert session.version
    assert idle.spark is None
    assert (first.spark, second.spark) == (SparkNeed(("a filter",), started=True), SparkNeed(("a filter",)))


def test_who_needs_it_in_vain_has_not_started_it() -> None:
    tally = UsageTally()
    spark = DeferredSpark(Starter(Unavailable("no Java")), local=True)
    with working_for(FakeClock(), [tally]):
        leave_to_spark("a filter")
        with pytest.raises(Unavailable):
            spark.use()
    assert tally.spark == SparkNeed(("a filter",))


class Late:
    """An engine, and the Spark that it starts."""

    def __init__(self) -> None:
        self.real = FakeSpark()
        self.spark = DeferredSpark(lambda: self.real, local=True)
        self.engine = DeferredEngine(self.spark)

    @property
    def touched(self) -> bool:
        """Whether this thread has used Spark."""
        return self.group is not None

    @property
    def group(self) -> str | None:
        """The group of this thread's jobs."""
        return self.real.context.groups.get(threading.get_ident())

    @property
    def active(self) -> str | None:
        """This thread's active session in the JVM."""
        return self.real.active.get(threading.get_ident())


@pytest.fixture
def late() -> Late:
    return Late()


def on_a_thread(work: Callable[[], None]) -> None:
    """Run `work` on a thread of its own to its end, and raise what it raises."""
    raised = list[BaseException]()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def test_an_engine_that_nothing_needs_starts_nothing(late: Late) -> None:
    late.engine.label("one")
    with late.engine.session() as session, late.engine.session():
        assert session is not None
    late.engine.cancel("one")
    assert (late.engine.stages("one"), late.spark.started) == ({}, False)
    assert len(late.engine.spent_s()) == 2


def test_the_first_use_of_a_session_comes_after_label_and_activation(late: Late) -> None:
    late.engine.label("one")
    with late.engine.session() as session:
        assert session.version == "session 0"
        assert (late.group, late.active) == ("one", "session 0")
        assert session.conf.getAll["spark.databricks.delta.stats.collect"] == "true"
    with late.engine.session() as again:
        assert again.version == "session 0", "it was given back"
    assert len(late.real.sessions) == 1


def test_a_thread_that_waits_for_another_one_gets_its_own_label_and_session(late: Late) -> None:
    """Frames of one thread's session are read by others, whose jobs are to be in their own groups."""
    late.engine.label("first")
    with late.engine.session() as lent:

        def consume() -> None:
            late.engine.label("second")
            with late.engine.session() as own:
                assert lent.version == "session 1", "made after this thread's own"
                assert (late.group, late.active) == ("second", "session 0")
                assert own.version == "session 0"

        on_a_thread(consume)
        assert not late.touched, "this thread has not used Spark yet"
        assert lent.version == "session 1"
        assert (late.group, late.active) == ("first", "session 1")


def test_a_use_of_the_root_brings_the_thread_under_its_label(late: Late) -> None:
    late.engine.label("one")
    with late.engine.session() as session:
        assert late.spark.root.version == "root"
        assert (late.group, late.active) == ("one", "session 0")
        assert session.version == "session 0"


def test_a_session_within_another_is_the_active_one_until_it_ends(late: Late) -> None:
    with late.engine.session() as outer:
        with late.engine.session() as inner:
            assert inner.version == "session 0"
            assert late.active == "session 0"
            with late.engine.session() as innermost:  # once Spark has started
                assert (late.spark.root.version, late.active) == ("root", innermost.version)
        assert late.spark.root.version == "root"
        assert outer.version == late.active == "session 0", "given back by the one within"


def test_labels_of_a_started_engine_are_set_at_once(late: Late) -> None:
    late.engine.label("before")
    assert late.spark.root.version == "root"
    late.engine.label("after")
    assert late.group == "after"
    assert late.spark.root.version == "root"
    assert late.group == "after", "the one before does not come back"


def test_what_was_canceled_before_the_start_is_canceled_at_the_start(late: Late) -> None:
    late.engine.cancel("gone")
    late.engine.label("gone")
    with late.engine.session() as session:
        assert session.version == "session 0"
    late.engine.cancel("later")
    assert late.real.context.canceled == ["gone", "later"]


def test_what_is_raised_before_the_start_is_raised_as_it_is(late: Late) -> None:
    with pytest.raises(ZeroDivisionError), late.engine.session():
        raise ZeroDivisionError
    assert not late.spark.started


def test_a_use_of_a_session_is_noted_after_the_start_too_and_to_borrow_one_is_none(late: Late) -> None:
    late.spark.use()
    used, idle = UsageTally(), UsageTally()
    with working_for(FakeClock(), [used]), late.engine.session() as session:
        assert session.version
    with working_for(FakeClock(), [idle]), late.engine.session():
        late.engine.label("one")
    assert (used.spark, idle.spark) == (SparkNeed(), None)


def test_the_start_is_an_investment_of_all_who_wait_for_it() -> None:
    gate, spent = threading.Barrier(2), list[float]()
    spark = DeferredSpark(Starter(before=lambda: time.sleep(0.3)), local=True)

    def use() -> None:
        gate.wait()
        before_s = invested_s()
        spark.use()
        spent.append(invested_s() - before_s)
        spark.use()
        assert invested_s() - before_s == spent[-1], "it has started"

    threads = [threading.Thread(target=use) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [each >= 0.25 for each in spent] == [True, True]
