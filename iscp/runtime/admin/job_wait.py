"""Waits, for users, until a job has applied a version, or until its target has been compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from iscp.coordination.jobs.reshard import refuse_split
from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import JobRow
from iscp.core.job.several_tables import further_tables
from iscp.core.job.verification import VerifyReport, refuse_unverifiable
from iscp.core.values.errors import (
    IscpError,
    JobFailed,
    TimedOut,
    Unavailable,
)
from iscp.core.values.ids import ShardId
from iscp.ports.catalog import Catalog
from iscp.ports.system import Clock
from iscp.runtime.admin.job_views import JobViews
from iscp.runtime.admin.named_tables import versions_wanted
from iscp.runtime.owner.job_progress import ProgressSignal
from iscp.runtime.owner.log.job_log_writer import LogWriter
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds

T = TypeVar("T")

ALIVE_LOOK_S = 1.0
"""Pause between two checks whether a waiting caller is still there."""

READS = TurnBounds(node_max=64, account_max=16, timeout_s=30.0)
"""Bounds of what waits read of tables and targets; a wait itself holds no turn."""


class JobWaiter:
    """Wait for jobs to apply versions. `target_fault` probes a job's target, by its rows, and returns why it does not
    hold what they say. The probe comes before a version is reported as applied.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        nodes: NodeClients,
        catalog: Catalog,
        views: JobViews,
        clock: Clock,
        progress: ProgressSignal,
        target_fault: Callable[[Sequence[JobRow]], IscpError | None],
    ) -> None:
        self._owner = owner
        self._nodes = nodes
        self._catalog = catalog
        self._views = views
        self._clock = clock
        self._progress = progress
        self._target_fault = target_fault
        self._turns = AccountTurns(READS, "iscp-wait-read", "read for the wait", "Retry", clock.monotonic_s)

    def wait(
        self,
        row: JobRow,
        version: int | None,
        timeout_s: float,
        alive: Callable[[], bool],
        versions: Mapping[str, int] | None = None,
    ) -> JobView:
        """Wait until the job has applied the newest version of each table that it reads, or `version` of its own, or
        those in `versions`, by name or URI. Raises InvalidRequest, JobFailed, TimedOut, Unavailable.
        """
        until_s = self._clock.monotonic_s() + timeout_s
        named = versions_wanted(row, version, versions or {})
        further = {uri: named.get(uri, -1) for uri in (row.table_uri, *further_tables(row))}
        further = self._of_storage(row, lambda: self._newest(further), alive)
        wanted = further.pop(row.table_uri)
        self._notify(row, False)
        fault: IscpError | None = None
        while True:
            # Before the job is read: whatever moves after that ends the wait below.
            seen = self._progress.count()
            current = self._owner.current_writer().job(row.key)
            reached = current is not None and current.job_id == row.job_id and current.watermark.version >= wanted
            if current is not None and reached and not _behind(current, further):
                rows, before = self._owner.current_writer().rows(row.key), fault
                fault = self._of_storage(row, partial(self._target_fault, rows), alive)
                if fault is None:
                    return self._views.of([current])[0]
                if before is None:
                    self._notify(row, True)
            _refuse_hopeless(row, current, fault)
            if self._progress.closed or not alive():
                raise Unavailable("the wait was given up: the node stops, or the caller is gone")
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                why = str(fault) if fault else _where_it_is(self._views.of([current])[0] if current else None)
                which = "".join(f", version {each} of {uri}" for uri, each in further.items())
                raise TimedOut(
                    f"version {wanted}{which} was not applied within {timeout_s:.3g} s; {why}",
                    remedy="See `iscp-admin job status`, and the node's log",
                )
            self._progress.wait(seen, min(left_s, ALIVE_LOOK_S))

    def _of_storage(self, row: JobRow, read: Callable[[], T], alive: Callable[[], bool]) -> T:
        """Return what `read` returns of the storage of the job's account, which may hang."""
        return self._turns.run(row.key.account, read, alive)

    def _newest(self, versions: Mapping[str, int]) -> dict[str, int]:
        return {uri: self._catalog.newest_version(uri) if each < 0 else each for uri, each in versions.items()}

    def verify(self, row: JobRow, repair: bool, timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        writer = self._owner.current_writer()
        refuse_unverifiable(row, repair)
        refuse_split(row, writer.read(lambda book: book.ranges(row.key.table_id)))
        still = lambda: alive() and not self._progress.closed  # noqa: E731
        return self._nodes.verify(row.key.shard, row.job_id, repair, timeout_s, still)

    def _notify(self, row: JobRow, targets: bool) -> None:
        for shard in shards_of(self._owner.current_writer(), [row.key.table_id]):
            self._nodes.notify(shard, targets)


def _behind(row: JobRow, further: Mapping[str, int]) -> bool:
    """Return whether one of these tables was not read up to the version that is wanted."""
    marks = row.sources if further else {}
    return any(uri not in marks or marks[uri].watermark.version < version for uri, version in further.items())


def shards_of(writer: LogWriter, tables: Iterable[str]) -> list[ShardId]:
    """Return the shards of all ranges of these tables."""
    return writer.read(lambda book: [ShardId(each, number) for each in tables for number in book.ranges(each)])


def _where_it_is(job: JobView | None) -> str:
    if job is None:
        return "the job was dropped"
    at = "has applied nothing yet" if job.applied_version < 0 else f"is at version {job.applied_version}"
    place = f"on {job.node_id}" if job.node_id else "on no node"
    status = job.status
    error = f"; its last error: {status.error_code} {status.error_msg}" if status.error_code else ""
    return f"the job {at}, {job.condition} {place}{error}"


def _refuse_hopeless(wanted: JobRow, current: JobRow | None, fault: IscpError | None) -> None:
    """Raise JobFailed where waiting cannot help; `fault`: what was found at the target."""
    why, remedy = "", ""
    if current is None or current.job_id != wanted.job_id:
        why, remedy = "was dropped, or replaced by a resync", "See `iscp-admin job list`"
    elif current.paused:
        why, remedy = "is paused", "Resume it with `iscp-admin job resume`"
    elif current.failed_for_good:
        why, remedy = f"has failed: {current.status.error_msg}", "Repair it, then `iscp-admin job resume`"
    if why:
        seen = f", and {fault.message}" if fault else ""
        raise JobFailed(f"the job {wanted.key.job_name!r} {why}{seen}", about="job", remedy=remedy)
