"""Finds out for how long the sources of jobs that lag retain what these have yet to read.

What a job has not read when VACUUM removes files, or the log is cleaned, can be had from all rows alone. So users are
to see it before, while the job can still be repaired or the retention raised.

Lets go of what sources hold for a job, once it is dropped, or registered again without that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from iscp.engine.account_turns import AccountTurns, PlaceGuard, TargetReads, TurnBounds
from iscp.model.job.job_row import JobRow, further_tables
from iscp.model.job.registration_id import logged_job
from iscp.model.job.source_holds import holder_of, retention_s
from iscp.model.values.errors import IscpError, NotOwner, Unavailable
from iscp.ports.consumer import ConsumerKind
from iscp.ports.source import Catalog, RetentionHold
from iscp.ports.system import Clock, Threads
from iscp.system.threads import THREADS, PacedThread

log = logging.getLogger(__name__)

EVERY_S = 60.0
"""Seconds between two turns, at least."""

LAG_MIN_S = 3_600.0
"""Lag in seconds from which on the retention of a job's sources is read; of a shorter retention nobody is warned."""

TABLES_MAX = 200
"""Sources that are read in a turn, those of the jobs that lag most; of the others the retention is not known."""

READ_S = 5.0
"""Seconds that reading what a table says of its retention may take; it is not known then."""


class RetentionWatch:
    """Reads the retention of sources in turns, on a thread of its own. `retained_s` is for any thread.

    `lagging` returns a row of each job that lags by so many seconds at least, those that lag most first; where it
    raises NotOwner or Unavailable, nothing is known.
    """

    def __init__(
        self,
        lagging: Callable[[float], Sequence[JobRow]],
        catalog: Catalog,
        places: PlaceGuard,
        clock: Clock,
        threads: Threads = THREADS,
    ) -> None:
        self._lagging = lagging
        self._catalog = catalog
        self._places = places
        self._clock = clock
        self._reads = TargetReads(places, READ_S, "iscp-retention", "read of the retention")
        self._known: Mapping[str, float] = {}
        self._thread = PacedThread("iscp-retention-watch", self.turn, clock, EVERY_S, threads)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.close()

    def retained_s(self, row: JobRow) -> float:
        """Return for how many seconds all of a job's sources retain what was removed; 0.0 where that is not known."""
        known = self._known
        found = [known[uri] for uri in (row.table_uri, *further_tables(row)) if uri in known]
        return min(found, default=0.0)

    def turn(self) -> None:
        """Read what tables say of their retention; what was known of others is forgotten."""
        try:
            lagging = self._lagging(LAG_MIN_S)
        except (NotOwner, Unavailable):
            self._known = {}
            return
        found: dict[str, float] = {}
        seen: set[str] = set()
        for row in lagging:
            for uri in (row.table_uri, *further_tables(row)):
                if self._thread.closed or len(seen) >= TABLES_MAX:
                    break
                if uri not in seen:
                    seen.add(uri)
                    self._read(row, uri, found)
        self._known = found

    def _read(self, row: JobRow, uri: str, found: dict[str, float]) -> None:
        catalog = self._places.catalog(row.key.account, self._catalog)
        try:
            known_s = retention_s(self._reads.run(row, lambda: catalog.describe(uri)).configuration)
        except IscpError as error:
            log.info("retention.not_read", extra={"job_id": row.job_id, "table": uri, "error": str(error)})
            return
        if known_s is not None:
            found[uri] = known_s


RELEASES = TurnBounds(node_max=64, account_max=16, timeout_s=60.0, waits=False)
"""Bounds of the commits by which sources let go, each of which has a thread of a call meanwhile."""


class SourceReleases:
    def __init__(self, holds: RetentionHold, kinds: Callable[[str], ConsumerKind]) -> None:
        self._holds = holds
        self._kinds = kinds
        self._turns = AccountTurns(RELEASES, "iscp-release", "release of the source", "Is its storage slow?")

    def release(self, before: JobRow, after: JobRow | None = None) -> None:
        """Release the sources that the job no longer reads. `after` is what the job is now, or None if it was dropped.
        A source that cannot be reached retains its hold, which is logged.

        The caller does so once that is in the job log, so that no refresh begins any more which would hold the source
        again.
        """
        holder = holder_of(before.key)
        still = self._pinned(after) if after is not None and holder_of(after.key) == holder else frozenset()
        for uri in sorted(self._pinned(before) - still):
            about = logged_job(before, uri)
            try:
                self._turns.run(before.key.account, partial(self._holds.release, uri, holder))
                log.info("source.released", extra=about)
            except IscpError as error:
                log.warning("source.still_held", extra={**about, "error": str(error)})

    def _pinned(self, row: JobRow) -> frozenset[str]:
        try:
            consumer = row.spec.consumer
            return frozenset(self._kinds(consumer.kind).held(consumer))
        except IscpError:  # a spec that was damaged in the log, or of a consumer that is not installed any more
            return frozenset()
