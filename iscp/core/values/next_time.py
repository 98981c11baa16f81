"""Check the time at which something is to be done again, as somebody else has answered it, before it is believed."""

from __future__ import annotations

from math import inf

from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.untrusted_values import exact_float, shown


def wait_until_s(next_at_s: object, now_s: float) -> float:
    """Return how long to wait for `next_at_s` (Unix seconds): never in the past, never nothing. Raises PermanentError.

    A time that is over would have it done again at once and for ever, one that is none never again.
    """
    try:
        at_s = exact_float(next_at_s, "next_at_s", -inf, inf)
    except ValueError as error:
        raise _no_time(f"{shown(next_at_s)} is no time") from error
    if at_s <= now_s:
        raise _no_time(f"{at_s} is {now_s - at_s:.3f} s in the past")
    return at_s - now_s


def _no_time(why: str) -> PermanentError:
    return PermanentError(
        f"the next time that was answered will not do: {why}",
        remedy="Answer Unix seconds that are yet to come",
        code=ErrorCode.CONSUMER_BROKEN,
    )
