"""Set up the process of a run, and leave it as it was: tests and programs may call the command within theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from iscp.adapters.telemetry.logging import configure_logging
from iscp.cli.shell.signal_answers import restore_answers
from iscp.core.settings.config import LogFormat, LogLevel


@contextmanager
def process_of_a_run() -> Iterator[None]:
    """Within, only errors are logged, as what is less is in the jobs' results; answers to signals are restored too."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()  # so that they are not closed
    try:
        configure_logging(LogFormat.TEXT, LogLevel.ERROR, {})
        with restore_answers():
            yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
