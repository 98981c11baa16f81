"""Puts the output of Spark's JVM into this process's own log: each event of its log as one, and any other line as one.

The JVM writes to a pipe, one JSON object a line (log4j2.properties). Lines that are none, as a Java's own warnings
before logging is set up or what a configuration of the user's prints, become events too.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from typing import Any

from iscp.core.values.untrusted_values import one_line

log = logging.getLogger("spark")

LINE_LENGTH_MAX = 20_000
"""Characters that are logged of one line of the JVM's output; the rest is cut off."""

_FIELDS = ("level", "class", "said", "stack")
_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}


def relay_output() -> tuple[int, threading.Thread]:
    """Return a file descriptor for a JVM to write to, and the thread that logs its output until its last writer has
    ended.
    """
    reader, writer = os.pipe()
    thread = threading.Thread(target=_relay, args=(reader,), name="iscp-jvm-log", daemon=True)
    thread.start()
    return writer, thread


def _relay(descriptor: int) -> None:
    with os.fdopen(descriptor, "rb") as lines:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                _log_event(*_event_of(text))


def _event_of(line: str) -> tuple[int, dict[str, str]]:
    """Return the level of a line, and the fields of its event."""
    try:
        found: Any = json.loads(line)
        given = {name: str(found[name])[:LINE_LENGTH_MAX] for name in _FIELDS if found[name]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return logging.WARNING, {"said": line[:LINE_LENGTH_MAX]}
    return _LEVELS.get(given.pop("level", ""), logging.WARNING), given


def _log_event(level: int, fields: dict[str, str]) -> None:
    if log.hasHandlers():
        log.log(level, "spark.said", extra=fields)
    else:  # a tool that has set up no logging
        print(one_line(f"spark: {' '.join(fields.values())}"), file=sys.stderr)  # noqa: T201
