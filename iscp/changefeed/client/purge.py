"""Decides which old rows of a changefeed may be deleted."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from iscp.changefeed.model.cursor import Cursor, slowest
from iscp.changefeed.model.ulid import ULID_BYTES, ulid_text
from iscp.core.values.argument_checks import require
from iscp.core.values.errors import InvalidRequest

_DRAWN_BITS = 80


@dataclass(frozen=True, slots=True)
class Purged:
    """A purge's outcome: the number of files and rows that went, and the cursor behind which all the rest is."""

    files: int
    rows: int
    first_cursor: Cursor


def bounds_of(shards: int, now_ms: int, older_than_s: float | None, cursors: Iterable[Cursor] | None) -> dict[int, str]:
    """Return each shard's last ulid that may go, as text; without the shards of which all has to stay.

    A bound is older than `older_than_s` if that is given, and no one of `cursors` if these are given is before it.
    Raises InvalidRequest.
    """
    if older_than_s is None and cursors is None:
        raise InvalidRequest(
            "says neither how old nor how far read", field="purge", remedy="Give older_than_s, behind_cursors or both"
        )
    bounds = None if cursors is None else slowest(cursors)
    if older_than_s is None:
        return bounds or {}
    require(older_than_s, (int, float), "older_than_s", "a number of seconds")
    if not 0 <= older_than_s < math.inf:
        raise InvalidRequest(f"is {older_than_s}", field="older_than_s", remedy="Give 0 or more seconds")
    before_ms = max(0, now_ms - int(min(older_than_s, now_ms) * 1000))
    if not before_ms:
        return {}
    aged = ulid_text(((before_ms << _DRAWN_BITS) - 1).to_bytes(ULID_BYTES, "big"))
    if bounds is None:
        return dict.fromkeys(range(shards), aged)
    return {shard: min(ulid, aged) for shard, ulid in bounds.items()}
