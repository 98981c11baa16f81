"""Note whether somebody still waits for what a thread does: it is canceled with the call that it is done for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WANTED: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


@contextmanager
def want_while(wanted: Callable[[], bool]) -> Iterator[None]:
    """Mark what this thread does within as of use for as long as `wanted` says so."""
    token = _WANTED.set(wanted)
    try:
        yield
    finally:
        _WANTED.reset(token)


def still_wanted() -> bool:
    return _WANTED.get()()
