"""Check whether targets still hold what was applied to them, at the cost of a probe of the log if nobody touched it.

The last state seen of a target is compared with its log as a source's is, by the probe for logs of that kind. Its
position is read only if the log has moved, or was never read. Consumers of the user's own have no log to probe: their
position is read before a wait is answered with the version as applied, and with each iteration.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from iscp.coordination.jobs.book_index import target_of
from iscp.core.job.job_row import JobRow
from iscp.core.job.target_state import TargetLog, TargetSeen, seen_target
from iscp.core.values.errors import IscpError, TableNotFound, TargetLost
from iscp.ports.catalog import LogProbe
from iscp.ports.consumer import Consumer, ConsumerEnvironment, ConsumerKind
from iscp.runtime.iteration.job_run import JobRun, reconciled
from iscp.runtime.iteration.range_position import read_position

TARGETS_CACHED_MAX = 10_000
"""Targets somebody waited for of which the owner remembers what it saw; the oldest are forgotten, and read again when
needed.
"""


class TargetProbes:
    """Port TargetProbe; safe for threads. `probes` has one for each kind of log; `environment` is for looking alone."""

    def __init__(
        self,
        probes: Mapping[TargetLog, LogProbe],
        kinds: Callable[[str], ConsumerKind],
        environment: ConsumerEnvironment,
    ) -> None:
        self._probes = probes
        self._kinds = kinds
        self._environment = environment

    def location(self, row: JobRow, seen: TargetSeen | None) -> str:
        return target_of(row.spec_json) if seen is None else seen.uri

    def probe(self, row: JobRow, seen: TargetSeen | None) -> TargetSeen:
        # What was seen says which kind of log it is: nobody parses the spec of a job whose target is idle.
        log = self._kinds(row.spec.consumer.kind).needs.target_log if seen is None else seen.log
        if log is TargetLog.NONE:
            return TargetSeen() if seen is None else seen
        return self._look_for_moves(row, seen, log)

    def check(self, row: JobRow) -> None:
        """Read the target's position; raises TargetLost where it does not hold what `row` says."""
        kind = self._kinds(row.spec.consumer.kind)
        consumer: Consumer
        if kind.open_range is not None:
            consumer = kind.open_range(row, self._environment)
            found = read_position(row, consumer, {})
            if found.apart:
                return  # its iterations bring it together
            position = found.position
        else:
            consumer = kind.open(row, self._environment)
            position = consumer.position(row)
        if position.job_id > row.job_id:
            return  # a later registration's, and this one is about to end
        if position.job_id != row.job_id:
            raise _lost(row, position.void or "it holds nothing of this job's")
        if position.void:
            raise _lost(row, position.void)
        there = reconciled(JobRun(row, kind, consumer, position)).position.watermark.version
        if there < row.watermark.version:
            raise _lost(row, f"it is at version {there} of the source, and {row.watermark.version} was applied")

    def _look_for_moves(self, row: JobRow, seen: TargetSeen | None, log: TargetLog) -> TargetSeen:
        uri, probe = self.location(row, seen), self._probes[log]
        state = seen.state if seen else None
        try:
            found = probe.probe(uri, state) if state else probe.first_probe(uri)
        except TableNotFound:
            self.check(row)
            raise _lost(row, "it is not there") from None
        if seen is not None and found is state:
            return seen
        self.check(row)
        return seen_target(log, uri, found)


class WaitedTargets:
    """The owner's knowledge of the targets that users wait for; safe for threads."""

    def __init__(self, probes: TargetProbes) -> None:
        self._probes = probes
        self._seen: OrderedDict[str, TargetSeen] = OrderedDict()
        self._lock = threading.Lock()

    def fault(self, rows: Iterable[JobRow]) -> IscpError | None:
        """Probe now: why the targets do not hold what these rows say, or cannot be read; None: they do."""
        try:
            for row in rows:
                self._probe(row)
        except IscpError as error:
            return error
        return None

    def _probe(self, row: JobRow) -> None:
        with self._lock:
            # Taken out, and the lock let go of: a storage that hangs holds up this caller alone.
            seen = self._seen.pop(row.job_id, None)
        seen = self._probes.probe(row, seen)
        if not seen.uri:
            self._probes.check(row)
        with self._lock:
            self._seen[row.job_id] = seen
            if len(self._seen) > TARGETS_CACHED_MAX:
                self._seen.popitem(last=False)


def _lost(row: JobRow, why: str) -> TargetLost:
    place = target_of(row.spec_json) or f"of {row.key.job_name}"
    return TargetLost(f"the target {place} does not hold what was applied to it: {why}", remedy="It is rebuilt")
