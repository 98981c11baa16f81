"""The port of traces: which work led to which, in this process and in others, and how long each took.

A context is the text of `iscp.core.values.trace_context`; an empty one is that of work that nobody traces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

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
