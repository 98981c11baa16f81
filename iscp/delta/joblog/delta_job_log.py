"""The job log on Delta tables, through deltalake: no JVM is on the control path.

`<uri>/iscp_log` holds the jobs, behind the fence of `FencedTable`; `<uri>/iscp_history` their iterations.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence

from iscp.delta.joblog.appended_tables import HistoryTable, set_damaged_aside
from iscp.delta.joblog.fenced_table import FencedTable
from iscp.delta.joblog.log_opening import (
    HISTORY_TABLE,
    LOG_TABLE,
    USED,
    Repaired,
    find_damage,
    is_there,
    refuse_others_table,
    repair,
    written_format,
)
from iscp.delta.joblog.log_schema import LOG_SCHEMA, REQUESTS_KEPT_PER_JOB, last_entries, log_table
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow, LogEntry
from iscp.model.values.errors import InvariantBroken, JobLogDamaged, OutcomeUnknown
from iscp.ports.system import Clock, Failpoints
from iscp.storage import files as storage
from iscp.storage.delta_errors import storage_error
from iscp.storage.locations import place


def refuse_other_cluster(uri: str, cluster: str) -> None:
    """Raise ConfigurationError if there is a job log at `uri` that belongs to another cluster."""
    refuse_others_table(f"{uri.rstrip('/')}/{LOG_TABLE}", cluster)


def repair_job_log(uri: str, reached: int) -> Repaired | None:
    """Repair the job log at `uri`, as `repair` does. Raises JobLogDamaged, StorageError."""
    table = f"{uri.rstrip('/')}/{LOG_TABLE}"
    try:
        return repair(table, reached)
    except OSError as error:
        raise storage_error(error, f"cannot repair {table}") from error


def set_damaged_history_aside(uri: str) -> str:
    """Set the history beside the job log at `uri` aside if it is damaged, as `set_damaged_aside` does."""
    return set_damaged_aside(f"{uri.rstrip('/')}/{HISTORY_TABLE}")


class DeltaJobLog:
    """Port JobLog; `uri` is a directory that exists, or a prefix of an object store.

    A directory that is missing is a StorageError, never a reason to begin a new log.
    """

    def __init__(
        self,
        uri: str,
        clock: Clock,
        failpoints: Failpoints,
        cluster: str = "",
        reached: Callable[[], int] = lambda: -1,
    ) -> None:
        """`cluster`: whose log it is, if it is made; raises ConfigurationError at the claim if it is another's.

        `reached`: a version that the log has reached, as far as anything outside its directory knows (0: there was
        one; -1: nothing is known); read at the claim.
        """
        self._base = base = uri.rstrip("/")
        self._reached = reached
        self._log = FencedTable(f"{base}/{LOG_TABLE}", LOG_SCHEMA, clock, failpoints, cluster=cluster)
        self._history = HistoryTable(f"{base}/{HISTORY_TABLE}", clock, lambda: written_format(f"{base}/{LOG_TABLE}"))
        self._requests: dict[str, tuple[str, ...]] = {}
        self._commits = 0
        self._doubtful: tuple[Sequence[LogEntry], str] | None = None

    @property
    def commits_since_compaction(self) -> int:
        return self._commits

    @property
    def version(self) -> int:
        return self._log.version

    def claim_term(self) -> int:
        self._refuse_damaged()
        term = self._log.claim()
        try:
            storage.create(f"{place(self._base)}/{USED}", b"")
        except OSError as error:
            raise storage_error(error, f"cannot write {self._base}/{USED}") from error
        return term

    def _refuse_damaged(self) -> None:
        """Raises JobLogDamaged, StorageError."""
        uri, base = f"{self._base}/{LOG_TABLE}", place(self._base)
        reached = self._reached()  # before the log is read: another owner may be writing
        try:
            if is_there(uri):
                if (damage := find_damage(uri, reached)) is not None:
                    raise damage.error()
                return
            signs = is_there(f"{self._base}/{HISTORY_TABLE}") or storage.exists(f"{base}/{USED}")
        except OSError as error:
            raise storage_error(error, f"cannot read {uri}") from error
        if signs or (storage.parent_is_there(f"{base}/{LOG_TABLE}") and reached >= 0):
            raise JobLogDamaged(
                f"the job log {uri} is gone, and this cluster has used one: all its registrations would be lost",
                remedy="Restore a backup by `iscp-admin backup restore`; to begin without its jobs, start a new "
                "cluster: another data directory, or other `log.uri` and `etcd.prefix`",
            )

    def load(self) -> list[JobRow]:
        table, files = self._log.read()
        rows, self._requests = last_entries(table)
        self._commits = files
        return rows

    def requests(self) -> Mapping[str, Sequence[str]]:
        return self._requests

    def append(self, entries: Sequence[LogEntry]) -> None:
        if not entries:
            return
        commit_id, self._doubtful = self._commit_id(entries), None
        rows = [entry.row for entry in entries]
        ids = [(entry.request_id,) if entry.request_id else () for entry in entries]
        try:
            self._log.commit(log_table(rows, ids), commit_id)
        except OutcomeUnknown:
            self._doubtful = (entries, commit_id)
            raise
        self._commits += 1
        for row, request_id in entries:
            if request_id:
                known = self._requests.get(row.job_id, ())
                self._requests[row.job_id] = (*known, request_id)[-REQUESTS_KEPT_PER_JOB:]

    def compact(self, rows: Sequence[JobRow]) -> None:
        requests = {row.job_id: ids for row in rows if (ids := self._requests.get(row.job_id))}
        table = log_table(rows, [requests.get(row.job_id, ()) for row in rows])
        self._log.commit(table, uuid.uuid4().hex, replace=True)
        self._requests = requests
        self._commits = 0

    def tidy(self) -> int:
        return self._log.tidy()

    def append_history(self, entries: Sequence[HistoryEntry]) -> None:
        self._history.append(entries)

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        return self._history.read(job_id, limit)

    def _commit_id(self, entries: Sequence[LogEntry]) -> str:
        """Return a new id, or that of the commit in doubt, which this is then a repetition of."""
        if self._doubtful is None:
            return uuid.uuid4().hex
        doubtful, commit_id = self._doubtful
        if doubtful != entries:
            raise InvariantBroken("a commit whose outcome is not known must be repeated before another")
        return commit_id
