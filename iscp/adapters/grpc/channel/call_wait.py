"""Says how long a call may wait for what it wants, by its request and by its own deadline."""

from __future__ import annotations

import grpc

from iscp.core.values.errors import InvalidRequest


def waiting_s(timeout_s: float, most_s: float, remedy: str, context: grpc.ServicerContext) -> float:
    """Return for how many seconds a call may wait that wants `timeout_s`. Raises InvalidRequest beyond `most_s`."""
    if not 0 <= timeout_s <= most_s:
        raise InvalidRequest(f"must be 0 to {most_s:.0f} seconds", field="timeout_s", remedy=remedy)
    # Nobody hears an answer that comes after the call's own deadline.
    remaining_s = context.time_remaining()
    return timeout_s if remaining_s is None else max(0.0, min(timeout_s, remaining_s))
