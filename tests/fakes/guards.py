"""Guards and failpoints for tests (ports Guard and Failpoints)."""

from __future__ import annotations

import errno
from collections.abc import Callable

from iscp.model.values.errors import Canceled


class OpenGuard:
    """Lets everything through until it is shut."""

    def __init__(self) -> None:
        self.shut = False

    def check(self) -> None:
        if self.shut:
            raise Canceled("the guard was shut")


class EndingGuard:
    """The right to go on (port Guard), which ends with the `checks`-th check."""

    def __init__(self, checks: int, error: Exception) -> None:
        self._left = checks
        self._error = error

    def check(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise self._error


class ScriptedFailpoints:
    """Runs a test's own code where the product reaches a named place: what happens "at the same time" there."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self._actions: dict[str, Callable[[], object]] = {}

    def once(self, name: str, action: Callable[[], object]) -> None:
        self._actions[name] = action

    def reach(self, name: str) -> None:
        self.reached.append(name)
        action = self._actions.pop(name, None)
        if action is not None:
            action()


def break_down() -> None:
    """A disk that fails."""
    raise OSError(errno.EIO, "Input/output error")
