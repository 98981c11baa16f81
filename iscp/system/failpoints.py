"""Failpoints set from outside, by the variable `ISCP_FAILPOINTS`: what a test makes a real process die of.

`name=kill|exit|raise|note|sleep:SECONDS`, several separated by commas, each with `:NTH` behind it to act when the name
is reached for the NTH time only (from 1; without it: every time). `kill` is SIGKILL to this process, so nothing is
cleaned up; `exit` leaves at once with status 1; `raise` is an EngineError; `note` writes a line to stderr, `failpoint
NAME`. The name `*` stands for every one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from iscp.model.values.errors import ConfigurationError, EngineError

VARIABLE = "ISCP_FAILPOINTS"
_ACTIONS = ("kill", "exit", "raise", "note", "sleep")
_REMEDY = "Write name=kill[:NTH], =exit[:NTH], =raise[:NTH], =note[:NTH] or =sleep:SECONDS[:NTH], separated by commas"

EVERY = "*"
"""The name that stands for each one."""

NOTE = "failpoint "
"""The beginning of a line about a failpoint that was reached."""


@dataclass(frozen=True, slots=True)
class Failpoint:
    """`nth` 0: every time."""

    name: str
    action: str
    seconds: float = 0.0
    nth: int = 0


def parse_failpoints(text: str) -> Iterator[Failpoint]:
    """Raises ConfigurationError."""
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, order = part.partition("=")
        action, *numbers = order.split(":")
        wanted = 1 if action == "sleep" else 0
        try:
            if not name or action not in _ACTIONS or not wanted <= len(numbers) <= wanted + 1:
                raise ValueError(part)
            seconds = float(numbers[0]) if wanted else 0.0
            nth = int(numbers[wanted]) if len(numbers) > wanted else 0
        except ValueError as error:
            raise ConfigurationError(f"{part!r} is not a failpoint", about=VARIABLE, remedy=_REMEDY) from error
        yield Failpoint(name, action, seconds, nth)


class EnvironmentFailpoints:
    """Port Failpoints."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._points: dict[str, list[Failpoint]] = {}
        for point in parse_failpoints(environment.get(VARIABLE, "")):
            self._points.setdefault(point.name, []).append(point)
        self._reached: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reach(self, name: str) -> None:
        if not self._points:
            return
        with self._lock:
            self._reached[name] += 1
            count = self._reached[name]
        # Without the lock: a failpoint that sleeps must not hold up the others.
        for point in (*self._points.get(name, ()), *self._points.get(EVERY, ())):
            if point.nth in (0, count):
                _act(point, name)


def _act(point: Failpoint, name: str) -> None:
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif point.action == "exit":
        os._exit(1)
    elif point.action == "raise":
        raise EngineError(f"failpoint {name}")
    elif point.action == "note":
        sys.stderr.write(f"{NOTE}{name}\n")
    else:
        time.sleep(point.seconds)
