"""Time, and the places where tests make a process die."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Unix seconds; may step."""

    def monotonic_s(self) -> float:
        """Seconds that never step back; only differences mean anything."""


class Failpoints(Protocol):
    """Named places where an outer hand may stop the process; does nothing in production."""

    def reach(self, name: str) -> None: ...


class Guard(Protocol):
    """The right to write: asked before work starts and again right before each commit.

    `check` raises LeaseLost when the node's lease can no longer be confirmed, Canceled or TimedOut when the
    iteration's end was ordered.
    """

    def check(self) -> None: ...
