"""What the runner has said before Spark started holds once it has."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from iscp.adapters.delta.sessions.deferred_spark import DeferredEngine, DeferredSpark
from iscp.core.job.usage import SparkNeed
from iscp.ports.work_timer import UsageTally, working_for
from tests.fakes.clock import FakeClock
from tests.fakes.late_spark import FakeSpark


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
