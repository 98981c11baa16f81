"""Requests of users, answered by the owner (port AdminService): requests are checked, logged, and answered then.

Wait within bounds for what the job log's writer answers.

At the owner: the jobs that lag, of which a few among very many are worth a closer view.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Pause, Register, Request, Resume, Resync, Unregister, Update
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.requests.job_views import JobLookup, JobViews, JobWaiter, shards_of
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.cluster.requests.retention_watch import SourceReleases
from iscp.model.api.api_requests import (
    ChangeOutcome,
    ChangeVerb,
    ExplainRequest,
    JobChange,
    JobFilter,
    JobName,
    RegisterRequest,
    ResyncRequest,
    UpdateRequest,
)
from iscp.model.api.api_views import CheckedJob, ClusterView, JobView, LeftOutRows, RegisterResult
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import matcher
from iscp.model.job.start_rule import VerifyReport
from iscp.model.query_plan import QueryExplanation
from iscp.model.values.errors import InvalidRequest, JobNotFound, OutcomeUnknown, PermanentError, TableNotFound
from iscp.model.values.ids import JobKey
from iscp.ports.catalog import Catalog
from iscp.ports.system import Clock
from iscp.system.threads import retry_conflicts

T = TypeVar("T")

COMMIT_WAIT_S = 30.0
"""Seconds that a caller waits for the log's answer; then the call fails with OUTCOME_UNKNOWN, and is to be repeated
with the same request id.
"""


def _no_answer() -> OutcomeUnknown:
    return OutcomeUnknown("the job log does not answer", remedy="Retry with the same request_id")


def answer_of(future: Future[T]) -> T:
    try:
        return future.result(COMMIT_WAIT_S)
    except TimeoutError as error:
        raise _no_answer() from error


def answers_of(futures: Sequence[Future[Any]]) -> list[ChangeOutcome]:
    """Return an answer for each change, within COMMIT_WAIT_S in all. Raises OutcomeUnknown if some were made, others
    not.
    """
    wait(futures, COMMIT_WAIT_S)
    outcomes: list[ChangeOutcome] = []
    failed: list[BaseException] = []
    for future in futures:
        error = future.exception() if future.done() else _no_answer()
        if error is None:
            outcomes.append(bool(future.result()))
        elif isinstance(error, PermanentError):
            outcomes.append(error)
        else:
            failed.append(error)
    if outcomes and failed:
        text = f"{len(failed)} of {len(futures)} changes failed: {failed[0]}"
        raise OutcomeUnknown(text, remedy="Retry with the same request ids") from failed[0]
    if failed:
        raise failed[0]
    return outcomes


RESYNC_TRIES_MAX = 3
"""Attempts of a resync whose job changes meanwhile; then it fails with the last attempt's error."""

_REQUESTS: dict[ChangeVerb, type[Unregister] | type[Pause] | type[Resume]] = {
    ChangeVerb.UNREGISTER: Unregister,
    ChangeVerb.PAUSE: Pause,
    ChangeVerb.RESUME: Resume,
}


class OwnerAdmin:
    """All answers come from the owner's book; while there is no owner, as of the end of the last one's term.

    `nodes` reaches whoever runs a shard.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        catalog: Catalog,
        validator: RequestValidator,
        views: JobViews,
        waiter: JobWaiter,
        nodes: NodeClients,
        cluster: Callable[[LogWriter], ClusterView],
        sources: SourceReleases,
        dead_letters: Callable[[JobRow, int], LeftOutRows],
    ) -> None:
        self._owner = owner
        self._lookup = JobLookup(catalog)
        self._validator = validator
        self._views = views
        self._waiter = waiter
        self._nodes = nodes
        self._cluster = cluster
        self._sources = sources
        self._dead_letters = dead_letters

    # --- changes -----------------------------------------------------------------------------------------------

    def register(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        writer = self._owner.current_writer()
        items = []
        for number, request in enumerate(requests):
            try:
                items.append(self._validator.registration(writer, request))
            except InvalidRequest as error:
                if len(requests) > 1:
                    error.field = f"requests[{number}].{error.field}"
                raise
        (future,) = self._validator.submit(writer, [Register(tuple(items))])
        answer: tuple[RegisterResult, ...] = answer_of(future)
        return list(answer)

    def check(self, requests: Sequence[RegisterRequest]) -> list[CheckedJob]:
        return self._validator.check(self._owner.current_writer(), requests)

    def resync(self, request: ResyncRequest) -> RegisterResult:
        # A conflict: the job was decided about while this was checked.
        return retry_conflicts(lambda: self._resync_once(request), RESYNC_TRIES_MAX)

    def _resync_once(self, request: ResyncRequest) -> RegisterResult:
        writer = self._owner.current_writer()
        found = self._resync(writer, request)
        if isinstance(found, RegisterResult):
            return found
        (future,) = self._validator.submit(writer, [found])
        answer: RegisterResult = answer_of(future)
        self._sources.release(found.seen, found.item.row)
        return answer

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        writer = self._owner.current_writer()
        found = [self._resolve(writer, change) for change in changes]
        requests = [each for each in found if not isinstance(each, (bool, PermanentError))]
        before = [self._ended_registration(writer, each) for each in requests]
        answers = answers_of(self._validator.submit(writer, requests))
        for rows, outcome in zip(before, answers, strict=True):
            if rows is not None and not isinstance(outcome, PermanentError):
                self._sources.release(*rows)
        in_turn = iter(answers)
        return [each if isinstance(each, (bool, PermanentError)) else next(in_turn) for each in found]

    def _ended_registration(self, writer: LogWriter, request: Request) -> tuple[JobRow, JobRow | None] | None:
        """Return the registration that a request ends, with the one that goes on instead."""
        match request:
            case Resync(seen, item):
                return seen, item.row
            case Unregister(key):
                row = writer.read(lambda book: book.job(key))
                return (row, None) if row is not None else None
        return None

    def _resolve(self, writer: LogWriter, change: JobChange) -> ChangeOutcome | Request:
        """Return what the writer is to decide, or the outcome if it need not."""
        try:
            if change.verb is ChangeVerb.RESYNC:
                found = self._resync(writer, ResyncRequest(change.job, request_id=change.request_id))
                return True if isinstance(found, RegisterResult) else found
            row = self._lookup.row(writer, change.job)
            if change.verb is ChangeVerb.DELETE_TARGET:
                return self._validator.deletion(row, change.request_id)
        except (JobNotFound, TableNotFound) as error:
            if change.verb in (ChangeVerb.UNREGISTER, ChangeVerb.DELETE_TARGET):
                return self._lookup.of_request(writer, change.job, change.request_id) is not None
            return error
        except PermanentError as error:
            return error
        return _REQUESTS[change.verb](row.key, change.request_id)

    def _resync(self, writer: LogWriter, request: ResyncRequest) -> Resync | RegisterResult:
        """Return what the writer is to decide, or the answer that the same request was given before."""
        first = self._lookup.of_request(writer, request.job, request.request_id)
        if first is not None:
            return RegisterResult(created=True, job_id=first.job_id, table_id=first.key.table_id)
        return self._validator.resync(self._lookup.row(writer, request.job), request)

    def update(self, requests: Sequence[UpdateRequest]) -> list[ChangeOutcome]:
        writer = self._owner.current_writer()
        found = [self._update(writer, request) for request in requests]
        updates = [each for each in found if isinstance(each, Update)]
        answers = iter(answers_of(writer.submit_all(updates)))
        outcomes = [next(answers) if isinstance(each, Update) else each for each in found]
        for request, update, outcome in zip(requests, found, outcomes, strict=True):
            if request.interrupt and isinstance(update, Update) and isinstance(outcome, bool):
                self._interrupt(writer, update.key)
        return outcomes

    def _update(self, writer: LogWriter, request: UpdateRequest) -> Update | PermanentError:
        try:
            return self._validator.update(self._lookup.row(writer, request.job), request)
        except PermanentError as error:
            return error

    def _interrupt(self, writer: LogWriter, key: JobKey) -> None:
        for row in writer.read(lambda book: book.rows_of(key)):
            self._nodes.interrupt(row.key.shard, row.job_id, row.spec_json)

    def notify(self, table: str, account: str = "") -> int:
        writer = self._owner.current_writer()
        touched = self._lookup.touched_by(writer, table, account)
        for shard in shards_of(writer, touched.on):
            self._nodes.notify(shard, True)
        for shard in shards_of(writer, touched.reading):
            self._nodes.notify(shard, False)  # whoever reads it besides its own table; no target was touched
        return touched.jobs

    # --- questions ---------------------------------------------------------------------------------------------

    def list_jobs(self, wanted: JobFilter) -> list[JobView]:
        if not wanted.late:
            return self._views.of(self._select(wanted))
        views = self._views.of(self._select(replace(wanted, limit=sys.maxsize)))
        return [view for view in views if view.late][: wanted.limit]

    def count_jobs(self, wanted: JobFilter) -> int:
        if wanted.late:
            return len(self.list_jobs(replace(wanted, limit=sys.maxsize)))
        if wanted.table_pattern or wanted.name_pattern:
            return len(self._select(replace(wanted, limit=sys.maxsize)))
        writer = self._owner.current_writer()
        tables = self._find_tables(writer, wanted)
        return writer.read(lambda book: book.count(wanted.account, tables, wanted.state, wanted.reason))

    def status(self, job: JobName) -> JobView:
        return self._views.in_full(self._lookup.row(self._owner.current_writer(), job))

    def dead_letters(self, job: JobName, limit: int) -> LeftOutRows:
        return self._dead_letters(self._lookup.row(self._owner.current_writer(), job), limit)

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        writer = self._owner.current_writer()
        return writer.history(self._lookup.row(writer, job).job_id, limit)

    def wait(
        self,
        job: JobName,
        version: int | None,
        timeout_s: float,
        alive: Callable[[], bool],
        versions: Mapping[str, int] | None = None,
    ) -> JobView:
        row = self._lookup.row(self._owner.current_writer(), job)
        return self._waiter.wait(row, version, timeout_s, alive, versions)

    def verify(self, job: JobName, repair: bool, timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        row = self._lookup.row(self._owner.current_writer(), job)
        return self._waiter.verify(row, repair, timeout_s, alive)

    def explain(self, request: ExplainRequest) -> QueryExplanation:
        spec_json = request.spec_json or self._lookup.row(self._owner.current_writer(), request.job).spec_json
        return self._validator.explain(spec_json, request.job.account)

    def cluster(self) -> ClusterView:
        return self._cluster(self._owner.current_writer())

    def _select(self, wanted: JobFilter) -> list[JobRow]:
        writer = self._owner.current_writer()
        tables = self._find_tables(writer, wanted)
        patterns = wanted.table_pattern or wanted.name_pattern
        limit = None if patterns else wanted.limit
        rows = writer.read(lambda book: book.select(wanted.account, tables, wanted.state, wanted.reason, limit))
        if not patterns:
            return rows
        # Not under the book's lock: it takes a while for many jobs.
        return list(islice(filter(matcher(wanted.table_pattern, wanted.name_pattern), rows), wanted.limit))

    def _find_tables(self, writer: LogWriter, wanted: JobFilter) -> tuple[str, ...]:
        return self._lookup.table_ids(writer, wanted.table, wanted.account) if wanted.table else ()


def lagging_jobs(owner: OwnerLoop, views: JobViews, clock: Clock) -> Callable[[float], Sequence[JobRow]]:
    """Return what finds the jobs that lag by so many seconds at least, those that lag most first.

    It raises NotOwner and Unavailable.
    """

    def found(least_s: float) -> Sequence[JobRow]:
        rows = owner.current_writer().read(_applied_before(clock.now_s() - least_s))
        lags = {view.job_id: view.lag_s for view in views.of(rows) if view.lag_s >= least_s}
        return sorted((row for row in rows if row.job_id in lags), key=lambda row: lags[row.job_id], reverse=True)

    return found


def _applied_before(at_s: float) -> Callable[[JobBook], list[JobRow]]:
    """Return what reads the jobs that may lag since then: no job lags by more than its watermark is old."""

    def read(book: JobBook) -> list[JobRow]:
        rows = (row for row in book.rows() if row.drop_at_s is None)
        return [row for row in rows if row.watermark.version >= 0 and row.watermark.at_s <= at_s]

    return read
