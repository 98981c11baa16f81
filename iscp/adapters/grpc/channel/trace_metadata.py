"""The context of a trace travels with a call as the metadata `traceparent`, after W3C Trace Context."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from iscp.core.values.trace_context import TRACE_KEY, trace_of
from iscp.ports.tracing import current_trace

Pairs = tuple[tuple[str, str | bytes], ...]


def trace_in(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the context with which a call came; empty if it came without one."""
    return next((trace for key, value in metadata if key == TRACE_KEY and (trace := trace_of(value))), "")


def with_trace(metadata: Pairs) -> Pairs:
    """Return the metadata of a call that is a part of the current context, whatever context they had before."""
    trace = current_trace()
    return (*(each for each in metadata if each[0] != TRACE_KEY), (TRACE_KEY, trace)) if trace else metadata


def traced_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata that a client adds to a call: the context of the program's own span, if it has one now.

    A program that traces has imported OpenTelemetry itself; for others it is not imported.
    """
    trace = current_trace() or _trace_of_program()
    return ((TRACE_KEY, trace),) if trace else ()


def _trace_of_program() -> str:
    library = sys.modules.get("opentelemetry.trace")
    if library is None:
        return ""
    about = library.get_current_span().get_span_context()
    return trace_of(f"00-{about.trace_id:032x}-{about.span_id:016x}-{int(about.trace_flags) & 1:02x}")
