"""Time, metrics, threads, and the places where tests make a process die."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from types import TracebackType
from typing import Protocol

from iscp.core.metrics.metric import DeclaredMetric, MetricReading


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
