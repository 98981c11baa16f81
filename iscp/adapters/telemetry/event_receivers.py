"""Receivers of events: a URL, or a file with an event on each line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from iscp.adapters.telemetry.http_target import HttpTarget
from iscp.core.values.errors import Unavailable

_FILE_MODE = 0o640

EVENT_BYTES_MAX = 4 * 1024**2
"""Bytes of one event; a larger one, as of a table of very many columns, is dropped, and counted."""


def _encoded(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def post_events(target: HttpTarget, events: Sequence[Mapping[str, Any]]) -> int:
    """Post each event by itself; return how many were too large. Raises Unavailable and PermanentError."""
    bodies = [_encoded(event) for event in events]
    fit = [body for body in bodies if len(body) <= EVENT_BYTES_MAX]
    for body in fit:
        target.post(body)
    return len(bodies) - len(fit)


def append_events(path: str, events: Sequence[Mapping[str, Any]]) -> int:
    """Append the events to the file at `path`, which several nodes may do; return how many were too large.

    Raises Unavailable.
    """
    lines = [_encoded(event) + b"\n" for event in events]
    fit = [line for line in lines if len(line) <= EVENT_BYTES_MAX]
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, _FILE_MODE)
        with open(descriptor, "ab", buffering=0) as file:
            content = b"".join(fit)
            # In one call, so that no line of another process comes between.
            if file.write(content) != len(content):
                raise Unavailable(f"{path} has taken a part of the events alone")
    except OSError as error:
        raise Unavailable(f"{path} cannot be written ({error.strerror})") from error
    return len(lines) - len(fit)
