"""Places the holds of jobs on the tables that they read, before they read them."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping

from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_job
from iscp.core.job.source_holds import holder_of
from iscp.core.values.watermark import Position
from iscp.ports.retention_hold import RetentionHold
from iscp.ports.system import Guard

HOLD_CHECK_S = 3_600.0
"""Seconds for which a hold that was found in place is taken to be there. Then the table's properties are read again, as
anybody who may alter the table may have changed them.
"""

HOLDS_CACHED_MAX = 10_000
"""Holds that a node knows to be in place; the one that was used least recently goes, and its table is read again."""

log = logging.getLogger(__name__)

_Placed = tuple[str, str, str, float]
"""A registration of a job, a table's URI and id as the job has read it, and the seconds of the hold."""


class HoldPlacer:
    """Places holds, and caches which are in place, so that not every iteration reads its tables' properties for them.

    Safe for threads. A table that nobody reads costs nothing, and neither does a job without holds.
    """

    def __init__(self, holds: RetentionHold) -> None:
        self._holds = holds
        self._placed: OrderedDict[_Placed, float] = OrderedDict()
        self._lock = threading.Lock()

    def place(
        self, row: JobRow, wanted: Mapping[str, float], position: Position, guard: Guard, monotonic_s: float
    ) -> None:
        """Have the job hold the tables of `wanted`, each for its seconds. Raises as RetentionHold, and as the guard.

        A table that was replaced is held as soon as the job has read the one in its place.
        """
        for uri, hold_s in sorted(wanted.items()):
            placed = row.job_id, uri, _table_id(row, position, uri), hold_s
            if self._is_placed(placed, monotonic_s):
                continue
            guard.check()  # this commits to the table itself, which no seq protects
            if self._holds.hold(uri, holder_of(row.key), hold_s):
                log.info("source.held", extra=logged_job(row, uri))
            with self._lock:
                self._placed[placed] = monotonic_s
                while len(self._placed) > HOLDS_CACHED_MAX:
                    self._placed.popitem(last=False)

    def _is_placed(self, placed: _Placed, monotonic_s: float) -> bool:
        with self._lock:
            found = self._placed.pop(placed, None)
            if found is None or monotonic_s - found >= HOLD_CHECK_S:
                return False
            self._placed[placed] = found  # used most recently
            return True


def _table_id(row: JobRow, position: Position, uri: str) -> str:
    """Return the id of the table at `uri` as the job has read it last, or an empty text if it has not."""
    mark = position.sources.get(uri)
    if mark is not None:
        return mark.table_id
    return (position.source_id or row.key.table_id) if uri == row.table_uri else ""
