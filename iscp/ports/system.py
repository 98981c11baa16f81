"""The ports to what surrounds a node's work: time, metrics and threads, the places where tests make a process die,
traces, notifications, and triggers of the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

from iscp.model.job.job_row import Notification
from iscp.model.job.start_rule import NotBefore, StartNow, TriggerFacts
from iscp.model.metrics.declared_metrics import DeclaredMetric, MetricReading

# --- time, metrics, threads and failpoints ----------------------------------------------------------------------------


class Clock(Protocol):
    def now_s(self) -> float:
        """Return the Unix time in seconds; it may step."""

    def monotonic_s(self) -> float:
        """Return seconds that never step back; only differences mean anything."""


class Meter(Protocol):
    """Takes what is measured. Safe for threads; nothing is raised, and nothing waits for whoever reads metrics."""

    def record(self, metric: DeclaredMetric, value: float, attributes: Mapping[str, str]) -> None:
        """Add to a counter, or count a value in a histogram."""

    def observe(self, read: Callable[[], Iterable[MetricReading]]) -> None:
        """Have `read` called whenever metrics are collected, on the thread that collects them.

        A metric is read by one `read` alone. If that raises, it has no reading then.
        """


class NoMeter:
    """The meter of a node whose metrics nobody wants (port Meter)."""

    def record(self, metric: DeclaredMetric, value: float, attributes: Mapping[str, str]) -> None:
        """Nobody reads it."""

    def observe(self, read: Callable[[], Iterable[MetricReading]]) -> None:
        """Nobody collects."""


NO_METER = NoMeter()


class Condition(Protocol):
    """A condition like `threading.Condition`: held by `with`, waited for and notified while it is held."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object: ...

    def notify(self, n: int = 1) -> None: ...

    def notify_all(self) -> None: ...


class Thread(Protocol):
    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...

    def is_current(self) -> bool:
        """Return whether it is the calling one."""


class Threads(Protocol):
    """Makes the threads of a loop and what they wait for, so that a loop may also run under a simulated clock."""

    def thread(self, name: str, run: Callable[[], None]) -> Thread: ...

    def conditions(self, count: int) -> Sequence[Condition]:
        """Return conditions that share one lock."""

    def pool(self, name: str) -> Executor:
        """Return one thread that takes what is submitted in turn."""


class Failpoints(Protocol):
    """Named places where an outer hand may stop the process; does nothing in production."""

    def reach(self, name: str) -> None: ...


class Guard(Protocol):
    """The right to write: checked before work starts and again right before each commit.

    `check` raises LeaseLost when the node's lease can no longer be confirmed, Canceled or TimedOut when the
    iteration's end was ordered.
    """

    def check(self) -> None: ...


# --- traces -----------------------------------------------------------------------------------------------------------
# A trace says which work led to which, in this process and in others, and how long each took. A context is the text of
# `iscp.model.values.ids`; an empty one is that of work that nobody traces.

Attribute = str | int | float | bool

P = ParamSpec("P")
T = TypeVar("T")

_CURRENT: ContextVar[str] = ContextVar("iscp_trace", default="")


class Span(Protocol):
    """One piece of work within a trace."""

    @property
    def trace(self) -> str:
        """Return the context by which other work becomes a part of this one."""

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Add what is known of the work by now."""

    def link(self, trace: str) -> None:
        """Point to the trace of other work that led to this one."""

    def fail(self, kind: str, message: str) -> None:
        """Note that the work failed; `kind` is one of few, and `message` is for people."""


class Tracer(Protocol):
    """Records spans. Safe for threads; never waits, and never raises."""

    def span(
        self,
        name: str,
        attributes: Mapping[str, Attribute],
        *,
        parent: str | None = None,
        start_s: float = 0.0,
        end_s: float = 0.0,
    ) -> AbstractContextManager[Span]:
        """Return a span that lasts as long as the block, in which its context is the current one.

        It is a part of `parent` (None: of the current context; empty: of nothing). `start_s` and `end_s` say when the
        work began and ended, if that is not now (Unix seconds). What the block raises is noted, unless the block has
        noted why it fails, and raised.
        """


class _NoSpan:
    trace = ""

    def note(self, attributes: Mapping[str, Attribute]) -> None:
        """Nobody reads it."""

    def link(self, trace: str) -> None:
        """Nobody reads it."""

    def fail(self, kind: str, message: str) -> None:
        """Nobody reads it."""


class NoTracer:
    """Records nothing (port Tracer)."""

    _nothing = nullcontext(_NoSpan())

    def span(
        self,
        name: str,
        attributes: Mapping[str, Attribute],
        *,
        parent: str | None = None,
        start_s: float = 0.0,
        end_s: float = 0.0,
    ) -> AbstractContextManager[Span]:
        return self._nothing


NO_TRACER = NoTracer()


def current_trace() -> str:
    """Return the context of what this thread does now."""
    return _CURRENT.get()


@contextmanager
def within_trace(trace: str) -> Iterator[None]:
    """Make what the block does a part of `trace`."""
    before = _CURRENT.set(trace)
    try:
        yield
    finally:
        with suppress(ValueError):  # a generator that was given up may be closed by another thread
            _CURRENT.reset(before)


def carried(work: Callable[P, T]) -> Callable[P, T]:
    """Return `work` as a part of the current context, whichever thread carries it out; it is to be called once."""
    return partial(copy_context().run, work) if _CURRENT.get() else work


# --- notifications ----------------------------------------------------------------------------------------------------


class Webhook(Protocol):
    """One receiver. `name` is what logs may say of it, which its URL is not: that may hold a secret."""

    @property
    def name(self) -> str: ...

    def post(self, notification: Notification) -> None:
        """Send it once, within a bounded time.

        Raises Unavailable where the receiver does not accept anything now, PermanentError where it refuses this.
        """


# --- triggers of the user's own ---------------------------------------------------------------------------------------
# They are classes named by entry points of the group `iscp.triggers`.


class Trigger(Protocol):
    """A trigger is made without arguments, once in each node, and called for all jobs that name it, from one thread.

    The trigger must answer at once, and have no state that its answers depend on: another node may evaluate the job the
    next time.
    """

    def validate(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError saying what is wrong with a job's options: the job is then refused."""

    def decide(self, facts: TriggerFacts) -> StartNow | NotBefore:
        """Return whether an iteration of this job starts now; called only if its source is ahead of it."""
