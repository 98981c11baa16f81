"""Set up the process of a run, and leave it as it was: tests and programs may call the command within theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from iscp.cli.shell.program_end import restore_answers
from iscp.model.settings.config import LogFormat
from iscp.model.values.untrusted_values import LogLevel
from iscp.notices.log_ring import configure_logging

_WARNS = "iscp.spark.java"
"""The logger that is heard of warnings too: they say which Java of the user is passed over, and no result does."""


@contextmanager
def process_of_a_run() -> Iterator[None]:
    """Within, errors alone are logged, as what is less is in the jobs' results, but for a Java that is passed over;
    answers to signals are restored too.
    """
    root, warns = logging.getLogger(), logging.getLogger(_WARNS)
    handlers, level = list(root.handlers), root.level
    root.handlers.clear()  # so that they are not closed
    try:
        configure_logging(LogFormat.TEXT, LogLevel.ERROR, {})
        warns.setLevel(logging.WARNING)
        with restore_answers():
            yield
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = handlers
        root.setLevel(level)
        warns.setLevel(logging.NOTSET)
