"""The end of a program, which leaves the interpreter as it is. Nothing heavy is imported here."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable


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
