"""The end of a program, which leaves the interpreter as it is. Nothing heavy is imported here.

The answers of a process to SIGINT and SIGTERM. Nothing heavy is imported here: this stands before all else.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


def run_to_end(main: Callable[[], object]) -> None:
    """Call `main`, and have the process end by its status once threads were waited for and exit handlers have run.

    Python's objects are not taken down after that. Threads of Arrow, Lance and delta-rs may hold some of these for a
    moment longer than the call that they worked for. Python before 3.14 ends a thread that wants its lock by then, upon
    which C++ aborts the process: a command that has succeeded would seem to crash.
    """
    status = 1  # of an exception that nobody has caught

    def leave() -> None:
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except (OSError, ValueError):
            return  # Python reports on the way down what could not be written
        os._exit(status)

    atexit.register(leave)  # called after all that are registered later
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    status = 0


SIGNALS = (signal.SIGINT, signal.SIGTERM)

REPEAT_S = 1.0
"""Seconds within which a signal that comes again is the same one: timeout(1) sends it to a process and to its group."""


@contextmanager
def restore_answers() -> Iterator[None]:
    """Have the signals be answered afterwards as before."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)


@contextmanager
def end_at_once() -> Iterator[None]:
    """Within, a signal ends the process at once with 128 and its number, and no words.

    This is for the time in which nothing is open, as modules load: an exception could get lost in what Python calls
    then. Signals that are ignored stay ignored.
    """

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        os._exit(128 + number)

    with restore_answers():
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, leave)
        yield


def answer_first_signal(answer: Callable[[int], object]) -> list[int]:
    """Have `answer` called with the number of the first signal; return those that have come, of which there is one.

    What comes within REPEAT_S is that signal again. A later one ends the process at once.
    """
    come: list[int] = []
    first_s = 0.0

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal first_s
        if not come:
            come.append(number)
            first_s = time.monotonic()
            answer(number)
        elif time.monotonic() - first_s > REPEAT_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in SIGNALS:
        signal.signal(number, hear)
    return come
