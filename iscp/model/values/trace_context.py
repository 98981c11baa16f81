"""The context of a trace, as it travels: one text after W3C Trace Context, level 1 (`traceparent`)."""

from __future__ import annotations

import re

TRACE_KEY = "traceparent"
"""The name under which a context travels, in the metadata of a call."""

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_of(text: object) -> str:
    """Return the context that `text`, which anybody may have written, says; empty if it says none."""
    return text if isinstance(text, str) and _TRACEPARENT.fullmatch(text) else ""


def is_sampled(trace: str) -> bool:
    """Return whether somebody records the trace of this context."""
    return bool(trace) and bool(int(trace[-2:], 16) & 1)
