"""When something is to be done again, as somebody else has answered it: checked before it is believed."""

from __future__ import annotations

from math import isfinite

from iscp.core.errors import ErrorCode, PermanentError


def wait_until_s(next_at_s: object, now_s: float) -> float:
    """How long to wait for `next_at_s` (Unix seconds): never in the past, never nothing. Raises PermanentError.

    A time that is over would have it done again at once and for ever, one that is none never again.
    """
    if isinstance(next_at_s, bool) or not isinstance(next_at_s, (int, float)) or not isfinite(next_at_s):
        raise _no_time(f"{next_at_s!r} is no time")
    if next_at_s <= now_s:
        raise _no_time(f"{next_at_s} is {now_s - next_at_s:.3f} s in the past")
    return next_at_s - now_s


def _no_time(why: str) -> PermanentError:
    return PermanentError(
        f"the next time that was answered will not do: {why}",
        remedy="Answer Unix seconds that are yet to come",
        code=ErrorCode.CONSUMER_BROKEN,
    )
