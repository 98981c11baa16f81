"""Lets go of what sources hold for a job, once it is dropped, or registered again without that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from iscp.core.job.job_row import JobRow
from iscp.core.job.logged_jobs import logged_job
from iscp.core.job.source_holds import holder_of
from iscp.core.values.errors import IscpError
from iscp.ports.consumer import ConsumerKind
from iscp.ports.retention_hold import RetentionHold
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds

log = logging.getLogger(__name__)

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
