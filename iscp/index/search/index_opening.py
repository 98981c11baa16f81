"""Opens an index at a version that a search may be answered from: whole, and as new as it has to be."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp.core.values.errors import ErrorCode, TemporaryError
from iscp.core.values.watermark import NOTHING_APPLIED, Watermark
from iscp.index.lance.index_store import open_index, open_live

if TYPE_CHECKING:
    from iscp.index.lance.index_store import OpenIndex

POLL_LEAST_S, POLL_MOST_S = 0.02, 0.1
"""Seconds after which a search that waits for a version opens the index again: at first, and at most."""


class IndexNotReadyError(TemporaryError):
    """An index is being built, or has not come to the version that a search needs."""

    code = ErrorCode.NOT_READY


@dataclass(frozen=True, slots=True)
class ReadyIndex:
    """An index, the watermark of the source that it is at, and for how long it was waited for."""

    index: OpenIndex
    watermark: Watermark
    waited_s: float


def open_whole(uri: str) -> OpenIndex:
    """Return the newest version of an index whose rows are all of one version of the source.

    Raises as `open_live`.
    """
    newest = open_live(uri)
    return open_index(uri, newest.head.whole) if newest.head.whole else newest


def open_ready(
    uri: str,
    min_version: int | None,
    wait_s: float,
    now_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> ReadyIndex:
    """Return the newest version of an index as soon as it has wholly applied `min_version` of its source.

    Raises IndexNotReadyError after `wait_s` seconds, or at once where nothing is to be waited for and the index is not
    built yet; InvalidRequest where there is no index, and StorageError.
    """
    began_s = now_s()
    pause_s = POLL_LEAST_S
    while True:
        waited_s = now_s() - began_s
        index = open_whole(uri)
        watermark = Watermark(index.head.version, index.head.version_at_s)
        if watermark.version > NOTHING_APPLIED and watermark.version >= (min_version or 0):
            return ReadyIndex(index, watermark, waited_s)
        left_s = wait_s - waited_s
        if min_version is None or left_s <= 0:
            raise _not_ready(uri, watermark, min_version, waited_s)
        sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, POLL_MOST_S)


def _not_ready(uri: str, watermark: Watermark, min_version: int | None, waited_s: float) -> IndexNotReadyError:
    if watermark.version == NOTHING_APPLIED:
        return IndexNotReadyError(
            f"the index {uri} is being built: it has no rows yet",
            about="uri",
            remedy="Wait until its job has built it",
        )
    return IndexNotReadyError(
        f"the index {uri} is at version {watermark.version} of its source after {waited_s:.1f} s, and not yet at "
        f"{min_version}",
        about="min_version",
        remedy="Wait for longer by wait_s, or leave out min_version to search what is there",
    )
