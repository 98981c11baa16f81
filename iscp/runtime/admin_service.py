"""What users ask, answered by the owner (port AdminService): requests are checked, logged, and answered then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from iscp.coordination.book import JobBook
from iscp.coordination.draft import Pause, Register, Registration, Resume, Unregister
from iscp.coordination.messages import SourceSeen
from iscp.core.admin import (
    ChangeOutcome,
    ChangeVerb,
    ClusterView,
    JobChange,
    JobFilter,
    JobName,
    JobView,
    NodeView,
    RegisterRequest,
    RegisterResult,
    ShardView,
)
from iscp.core.cluster import NodeRecord
from iscp.core.errors import (
    InvalidRequest,
    JobFailed,
    JobNotFound,
    PermanentError,
    TableNotFound,
    TimedOut,
    Unavailable,
)
from iscp.core.ids import JobKey, ShardId, next_job_id
from iscp.core.iteration import HistoryEntry
from iscp.core.job import JobRow
from iscp.core.spec import parse_spec
from iscp.ports.pipeline import Catalog, ConsumerKind
from iscp.ports.system import Clock
from iscp.runtime.answers import answer_of, answers_of
from iscp.runtime.log_writer import LogWriter
from iscp.runtime.moved import Moved
from iscp.runtime.owner_loop import OwnerLoop

T = TypeVar("T")

ALIVE_LOOK_S = 1.0
JOB_NAME_LENGTH_MAX = 200

_REQUESTS: dict[ChangeVerb, type[Unregister] | type[Pause] | type[Resume]] = {
    ChangeVerb.UNREGISTER: Unregister,
    ChangeVerb.PAUSE: Pause,
    ChangeVerb.RESUME: Resume,
}


class OwnerAdmin:
    """All answers come from the owner's book; while there is no owner, as of the end of the last one's term.

    `executor_counts` are this node's; `notify_node` reaches its scheduler's `notify`.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        catalog: Catalog,
        kinds: Callable[[str], ConsumerKind],
        clock: Clock,
        moved: Moved,
        notify_node: Callable[[ShardId, bool], None],
        executor_counts: Callable[[], dict[str, int]],
    ) -> None:
        self._owner = owner
        self._catalog = catalog
        self._kinds = kinds
        self._clock = clock
        self._moved = moved
        self._notify_node = notify_node
        self._executor_counts = executor_counts
        self._last_id = ""
        self._id_lock = threading.Lock()

    # --- changes -----------------------------------------------------------------------------------------------

    def register(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        writer = self._owner.current_writer()
        items = []
        for number, request in enumerate(requests):
            try:
                items.append(self._registration(writer, request))
            except InvalidRequest as error:
                if len(requests) > 1:
                    error.field = f"requests[{number}].{error.field}"
                raise
        with self._id_lock:
            # Ids come in the order in which the requests will be decided. One drawn before a check that takes its time
            # could be overtaken by a registration that is dropped again, and its job never claim their target.
            numbered = (replace(item, row=replace(item.row, job_id=self._next_job_id(writer))) for item in items)
            future = writer.submit(Register(tuple(numbered)))
        answer = answer_of(future)
        return list(answer)

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        writer = self._owner.current_writer()
        found = [self._found(writer, change) for change in changes]
        requests = [each for each in found if not isinstance(each, (bool, PermanentError))]
        answers = iter(answers_of(writer.submit_all(requests)))
        return [each if isinstance(each, (bool, PermanentError)) else next(answers) for each in found]

    def _found(self, writer: LogWriter, change: JobChange) -> ChangeOutcome | Unregister | Pause | Resume:
        """What to ask the writer, or the outcome where it need not be asked."""
        try:
            key = self._key(writer, change.job)
        except (JobNotFound, TableNotFound) as error:
            if change.verb is ChangeVerb.UNREGISTER:
                return _was_dropped_by(writer, change.job, change.request_id)
            return error
        except PermanentError as error:
            return error
        return _REQUESTS[change.verb](key, change.request_id)

    def notify(self, table: str) -> int:
        writer = self._owner.current_writer()
        table_id = self._table_id(writer, table)
        jobs = writer.read(lambda book: book.jobs_on(table_id))
        if jobs:
            self._notify_node(ShardId(jobs[0].key.table_id), True)
        return len(jobs)

    # --- questions ---------------------------------------------------------------------------------------------

    def list_jobs(self, wanted: JobFilter) -> list[JobView]:
        return self._views(self._select(wanted))

    def count_jobs(self, wanted: JobFilter) -> int:
        writer = self._owner.last_writer()
        table_id = self._filtered_table(writer, wanted)
        return writer.read(lambda book: book.count(wanted.account, table_id, wanted.state, wanted.reason))

    def status(self, job: JobName) -> JobView:
        return self._views([self._row(self._owner.last_writer(), job)])[0]

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        writer = self._owner.last_writer()
        return writer.history(self._row(writer, job).job_id, limit)

    def wait(self, job: JobName, version: int | None, timeout_s: float, alive: Callable[[], bool]) -> JobView:
        until_s = self._clock.monotonic_s() + timeout_s
        row = self._row(self._owner.last_writer(), job)
        wanted = self._catalog.newest_version(row.table_uri) if version is None else version
        self._notify_node(ShardId(row.key.table_id), False)
        while True:
            seen = self._moved.count()
            current = self._owner.last_writer().read(lambda book: book.get(row.key))
            _refuse_hopeless(row, current, wanted)
            if current is not None and current.watermark.version >= wanted:
                return self._views([current])[0]
            if self._moved.closed or not alive():
                raise Unavailable("the wait was given up: the node stops, or the caller is gone")
            left_s = until_s - self._clock.monotonic_s()
            if left_s <= 0:
                at = current.watermark.version if current else -1
                raise TimedOut(f"version {wanted} was not applied within {timeout_s:.3g} s; the job is at {at}")
            self._moved.wait(seen, min(left_s, ALIVE_LOOK_S))

    def cluster(self) -> ClusterView:
        writer = self._owner.last_writer()
        nodes, shards, lag_max_s = self._owner.ask(self._placements)
        counters = self._executor_counts()
        return ClusterView(
            owner=self._owner.machine.node_id if self._owner.writer is not None else "",
            owner_rev=self._owner.machine.owner_rev,
            nodes=tuple(
                replace(node, queue_waiting=counters["waiting"], queue_running=counters["running"]) for node in nodes
            ),
            shards=shards,
            jobs=writer.read(len),
            lag_max_s=lag_max_s,
            counters=counters,
        )

    # --- finding -----------------------------------------------------------------------------------------------

    def _registration(self, writer: LogWriter, request: RegisterRequest) -> Registration:
        name = request.job.name
        if not name.strip() or len(name) > JOB_NAME_LENGTH_MAX:
            raise InvalidRequest(
                f"must have 1 to {JOB_NAME_LENGTH_MAX} characters", field="job.name", remedy="Name the job"
            )
        if not request.job.account.strip():
            raise InvalidRequest("is empty", field="job.account", remedy="Leave it out for the default account")
        source = self._catalog.describe(request.job.table)
        key = JobKey(request.job.account, source.table_id, name)
        there = writer.read(lambda book: book.get(key))
        spec = parse_spec(request.spec_json)
        kind = self._kinds(spec.consumer.kind)
        if there is None:
            # What is there already is answered so, whatever has become of its target meanwhile.
            kind.validate(spec.consumer, source, self._catalog)
        elif there.table_uri != source.uri:
            raise InvalidRequest(
                f"{source.uri} has the same table id as {there.table_uri}, on which this job is",
                field="job.name",
                remedy="Choose another name for the job on the copy",
            )
        target = self._catalog.normalize(spec.consumer.target) if spec.consumer.target else ""
        row = JobRow(
            key=key,
            job_id="",
            spec_json=replace(spec, consumer=replace(spec.consumer, target=target)).to_json(),
            table_name=request.job.table,
            table_uri=source.uri,
            create_at_s=self._clock.now_s(),
        )
        return Registration(row, request.request_id, kind.shared_target)

    def _next_job_id(self, writer: LogWriter) -> str:
        last = max(self._last_id, writer.read(lambda book: book.last_job_id))
        self._last_id = next_job_id(self._clock.now_s(), last)
        return self._last_id

    def _table_id(self, writer: LogWriter, table: str) -> str:
        """The id of a table that has jobs, by id, name, or path; raises TableNotFound where it has none."""
        found = writer.read(lambda book: table if book.has_jobs_on(table) else book.table_called(table))
        if found is None:
            path = self._catalog.normalize(table)
            found = writer.read(lambda book: book.table_called(path))
        if found is None:
            raise TableNotFound(f"{table} has no jobs", field="table", remedy="See `iscp-admin job list`")
        return found

    def _key(self, writer: LogWriter, job: JobName) -> JobKey:
        return self._row(writer, job).key

    def _row(self, writer: LogWriter, job: JobName) -> JobRow:
        key = JobKey(job.account, self._table_id(writer, job.table), job.name)
        row = writer.read(lambda book: book.get(key))
        if row is None:
            raise JobNotFound(
                f"there is no job {job.name!r} on {job.table}", field="job", remedy="See `iscp-admin job list`"
            )
        return row

    def _filtered_table(self, writer: LogWriter, wanted: JobFilter) -> str:
        return self._table_id(writer, wanted.table) if wanted.table else ""

    def _select(self, wanted: JobFilter) -> list[JobRow]:
        writer = self._owner.last_writer()
        table_id = self._filtered_table(writer, wanted)
        return writer.read(
            lambda book: book.select(wanted.account, table_id, wanted.state, wanted.reason, wanted.limit)
        )

    # --- views -------------------------------------------------------------------------------------------------

    def _views(self, rows: Sequence[JobRow]) -> list[JobView]:
        shards = {ShardId(row.key.table_id) for row in rows}

        def look(loop: OwnerLoop) -> dict[ShardId, tuple[str, SourceSeen | None]]:
            held = loop.machine.assignments
            found = {}
            for shard in shards:
                assignment = held.get(shard)
                holder = assignment.holder if assignment else None
                found[shard] = (holder.node_id if holder else "", loop.seen.get(shard))
            return found

        known = self._owner.ask(look)
        return [self._view(row, *known[ShardId(row.key.table_id)]) for row in rows]

    def _view(self, row: JobRow, node_id: str, seen: SourceSeen | None) -> JobView:
        source_version = max(seen.source_version if seen else -1, row.watermark.version)
        return JobView(
            account=row.key.account,
            table_id=row.key.table_id,
            table=row.table_name,
            name=row.key.job_name,
            job_id=row.job_id,
            spec_json=row.spec_json,
            state=row.state,
            reason=row.reason,
            applied_version=row.watermark.version,
            applied_at_s=row.watermark.at_s,
            source_version=source_version,
            checked_at_s=seen.checked_at_s if seen else 0.0,
            lag_s=self._lag_s(row, seen, held=bool(node_id)),
            seq=row.seq,
            status=row.status,
            create_at_s=row.create_at_s,
            node_id=node_id,
        )

    def _lag_s(self, row: JobRow, seen: SourceSeen | None, held: bool) -> float:
        """How stale the job is; a job that is up to date with what was last seen is so as of that look.

        While no node holds the table, nobody looks: then the time since the last look counts as lag.
        """
        if seen is None:
            return -1.0
        if row.watermark.version >= seen.source_version:
            return 0.0 if held else max(0.0, self._clock.now_s() - seen.checked_at_s)
        # The table's own figure is of its slowest job; no job is staler than that, or than its own watermark.
        table_s = seen.lag_s + (self._clock.now_s() - seen.checked_at_s)
        own_s = self._clock.now_s() - row.watermark.at_s if row.watermark.version >= 0 else table_s
        # A paused job does not count among those of the table: only its own watermark tells how far it has fallen back.
        return max(0.0, own_s if row.paused else min(table_s, own_s))

    def _placements(self, loop: OwnerLoop) -> tuple[tuple[NodeView, ...], tuple[ShardView, ...], float]:
        names: dict[str, int] = {}
        shards, held = [], set()
        for assignment in loop.machine.assignments:
            holder = assignment.holder.node_id if assignment.holder else ""
            names[holder] = names.get(holder, 0) + 1
            held.update([assignment.shard] if holder else [])
            table = assignment.jobs[0].table_name if assignment.jobs else ""
            shards.append(
                ShardView(assignment.shard.table_id, table, holder, assignment.state.value, len(assignment.jobs))
            )
        nodes = tuple(_node_view(record, names.get(record.node_id, 0)) for record in loop.members)
        now_s = self._clock.now_s()
        lags_s = (
            seen.lag_s + (0.0 if shard in held else now_s - seen.checked_at_s) for shard, seen in loop.seen.items()
        )
        return nodes, tuple(shards), max(lags_s, default=-1.0)


def _node_view(record: NodeRecord, shards: int) -> NodeView:
    return NodeView(
        node_id=record.node_id,
        pid=record.pid,
        address=record.address,
        epoch=record.epoch,
        version=record.version,
        state="registered",
        shards=shards,
        queue_waiting=0,
        queue_running=0,
    )


def _was_dropped_by(writer: LogWriter, job: JobName, request_id: str) -> bool:
    """Whether it was this very request that dropped the job, and its answer was lost."""

    def look(book: JobBook) -> JobRow | None:
        return book.by_id(book.request(request_id) or "")

    row = writer.read(look) if request_id else None
    return row is not None and (row.key.account, row.key.job_name) == (job.account, job.name)


def _refuse_hopeless(asked: JobRow, current: JobRow | None, version: int) -> None:
    """Raise JobFailed where waiting cannot help."""
    why, remedy = "", ""
    if current is None or current.job_id != asked.job_id:
        why = "was dropped"
    elif current.watermark.version >= version:
        return
    elif current.paused:
        why, remedy = "is paused", "Resume it with `iscp-admin job resume`"
    elif current.failed_for_good:
        why, remedy = f"has failed: {current.status.error_msg}", "Mend it, then `iscp-admin job resume`"
    if why:
        raise JobFailed(f"the job {asked.key.job_name!r} {why}", remedy=remedy)
