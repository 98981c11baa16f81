"""Check what users want registered or resynced against the catalog and the consumer, before anything is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import PendingChanges, Register, Request, Reshard, Resync, Unregister, Update
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.requests.job_maker import (
    JobMaker,
    check_names,
    check_new_names,
    row_of,
)
from iscp.engine.account_turns import AccountTurns, TurnBounds
from iscp.engine.iteration_ports import refuse_unfit
from iscp.model.api.api_requests import Action, CheckedJob, JobName, RegisterRequest, ResyncRequest, UpdateRequest
from iscp.model.job.job_row import JobRow, Registration, with_own_table_id
from iscp.model.job.registration_id import marked_job_id, spec_mark
from iscp.model.query_plan import QueryExplanation
from iscp.model.spec.spec import ChangeMode
from iscp.model.spec.spec_parsing import changed_spec, parse_spec
from iscp.model.values.errors import Conflict, InvalidRequest, PermanentError, TableNotFound
from iscp.model.values.ids import JobKey, next_job_id
from iscp.ports.admin import still_wanted
from iscp.ports.source import TableDescription

T = TypeVar("T")

CHECKS = TurnBounds(node_max=300, account_max=100, timeout_s=180.0, waits=False)
"""Bounds of the checks of requests, each of which holds a call's thread meanwhile; a query may take long to analyze."""


class RequestValidator:
    """Makes what the log's writer decides of what users request, and submits it under job_ids in their order."""

    def __init__(self, maker: JobMaker) -> None:
        self._maker = maker
        self._turns = AccountTurns(
            CHECKS,
            "iscp-check",
            "check of the request",
            "Retry; is the storage of a table slow?",
            maker.clock.monotonic_s,
        )
        self._last_id = ""
        self._id_lock = threading.Lock()

    def registration(self, writer: LogWriter, request: RegisterRequest) -> Registration:
        """Raises InvalidRequest."""
        return self._in_turn(request.job.account, lambda: self._registration(writer, request))

    def _in_turn(self, account: str, check: Callable[[], T]) -> T:
        """Return what a check returns, which touches the account's storage: that may hang.

        Raises TimedOut and QueueFull as AccountTurns.run, and Unavailable where the caller is gone.
        """
        return self._turns.run(account, check, still_wanted)

    def _registration(self, writer: LogWriter, request: RegisterRequest) -> Registration:
        check_names(request.job)
        source, table_id = self._describe_source(writer, request.job)
        key = JobKey(request.job.account, table_id, request.job.name)
        # What is there already is answered so, whatever has become of its target meanwhile.
        check = writer.read(lambda book: book.job(key)) is None
        if check:
            check_new_names(request.job)
        item = self._maker.make(request.job, request.spec_json, source, table_id, check=check)
        if check:
            self._maker.refuse_rebuild(item.row)
        return replace(item, request_id=request.request_id)

    def check(self, writer: LogWriter, requests: Sequence[RegisterRequest]) -> list[CheckedJob]:
        """Return what it takes to have each job as it is wanted, and why not if it cannot be."""
        checked = [self._in_turn(request.job.account, partial(self._check, writer, request)) for request in requests]
        now_s = self._maker.clock.now_s()

        def decide(book: JobBook) -> list[CheckedJob]:
            draft = PendingChanges(book, now_s)  # thrown away
            return [each if isinstance(each, CheckedJob) else _decide(draft, *each) for each in checked]

        return writer.read(decide)

    def _check(self, writer: LogWriter, request: RegisterRequest) -> CheckedJob | tuple[JobRow | None, Registration]:
        """Return the job that is there and what it is to be, or why not."""
        try:
            check_names(request.job)
            source, table_id = self._describe_source(writer, request.job)
            there = self._there(writer, request.job, source.uri, table_id)
            item = self._maker.make(request.job, request.spec_json, source, table_id, check=False)
            if there is None or action_for(there, item.row) is not Action.UNCHANGED:
                self._maker.check(request.job, parse_spec(request.spec_json), source)
            if there is None:
                check_new_names(request.job)
                self._maker.refuse_rebuild(item.row)
            return there, item
        except PermanentError as error:
            return CheckedJob(error=error)

    def _there(self, writer: LogWriter, job: JobName, uri: str, table_id: str) -> JobRow | None:
        """Return the job of this name on the table, or on one that was at its place before and is not there any
        more.
        """
        before = writer.read(lambda book: book.tables_called(uri))
        for each in (table_id, *before):
            key = JobKey(job.account, each, job.name)
            there: JobRow | None = writer.read(lambda book, key=key: book.job(key))  # type: ignore[misc]
            if there is not None and there.table_uri == uri:
                return there
        return None

    def _describe_source(self, writer: LogWriter, job: JobName) -> tuple[TableDescription, str]:
        """Describe the job's source, and the id of it that the job is known by, or would be beside the table's others.

        If the table was replaced and its jobs have followed, that is an id that it had before; if it is a copy of a
        table that has jobs, it is an id of its own.
        """
        source = self._maker.describe(job.account, job.table)

        def known(book: JobBook) -> str:
            known_ids = book.tables_called(source.uri)
            ids = [each for each in (source.table_id, *book.tables_called(source.table_id)) if each in known_ids]
            named = (each for each in ids if book.rows_of(JobKey(job.account, each, job.name)))
            table_id = next(named, ids[0] if ids else source.table_id)
            row = row_of(job, "", source, table_id)
            return with_own_table_id(row, book.job, book.uri_of).key.table_id

        return source, writer.read(known)

    def resync(self, seen: JobRow, request: ResyncRequest) -> Resync:
        """Return the job `seen` on the table that its source is now, or on another. Raises InvalidRequest."""
        return self._in_turn(seen.key.account, lambda: self._resync(seen, request))

    def _resync(self, seen: JobRow, request: ResyncRequest) -> Resync:
        table = request.table or seen.table_name
        try:
            source = self._maker.describe(seen.key.account, table)
        except TableNotFound as error:
            raise TableNotFound.from_error(
                error, field="table", remedy="Name where the source is now, or unregister the job"
            ) from error
        job = JobName(table, seen.key.job_name, seen.key.account)
        # What was taken over once is built now.
        spec_json = request.spec_json or replace(seen.spec, adopt_from=None).to_json()
        item = self._maker.make(job, spec_json, source, source.table_id, check=True)
        return Resync(seen, replace(item, request_id=request.request_id))

    def update(self, seen: JobRow, request: UpdateRequest) -> Update:
        """Raises InvalidRequest."""
        return self._in_turn(seen.key.account, lambda: self._update(seen, request))

    def _update(self, seen: JobRow, request: UpdateRequest) -> Update:
        self._maker.places.require_job(seen)
        spec = changed_spec(seen.spec_json, request.changes_json)
        self._maker.check_trigger(spec.trigger)
        wants_feed = spec.change_source is ChangeMode.CDF
        if wants_feed and (seen.spec.change_source, seen.spec.enable_cdf) != (spec.change_source, spec.enable_cdf):
            refuse_unfit(spec, self._maker.catalog(seen.key.account).describe(seen.table_name))
        return Update(seen.key, request.changes_json, request.request_id)

    def deletion(self, seen: JobRow, request_id: str) -> Unregister:
        """Raises InvalidRequest for a job whose target is not deleted here."""
        kind = self._maker.kinds(seen.spec.consumer.kind)
        if kind.delete_target is None:
            raise InvalidRequest(
                f"would delete the target of a consumer {kind.name}, which nodes cannot",
                field="delete_target",
                remedy="Unregister the job without it, and delete its target by hand",
            )
        self._in_turn(seen.key.account, lambda: self._maker.places.require_job(seen))
        return Unregister(seen.key, request_id, delete_target=True)

    def explain(self, spec_json: str, account: str) -> QueryExplanation:
        """Explain the query, as `JobMaker.explain` does."""
        return self._in_turn(account, lambda: self._maker.explain(spec_json, account))

    def submit(self, writer: LogWriter, requests: Sequence[Request]) -> list[Future[Any]]:
        """Hand them to the writer, each for itself; raises as it does, and then none was taken.

        Ids come in the order in which the requests will be decided. One drawn before a check that takes its time
        could be overtaken by a registration that is dropped again, and its job never claim their target.
        """
        with self._id_lock:
            return writer.submit_all([self._assign_ids(writer, request) for request in requests])

    def _assign_ids(self, writer: LogWriter, request: Request) -> Request:
        match request:
            case Register(items):
                return Register(tuple(self._assign_id(writer, item) for item in items))
            case Resync(seen, item):
                return Resync(seen, self._assign_id(writer, item, full=True))
            case Reshard():
                return replace(request, job_id=self._next_id(writer))
            case _:
                return request

    def _assign_id(self, writer: LogWriter, item: Registration, *, full: bool = False) -> Registration:
        mark = spec_mark(item.row.table_uri, item.row.spec.consumer)
        job_id = marked_job_id(self._next_id(writer), mark, full=full)
        return replace(item, row=item.row._replace(job_id=job_id))

    def _next_id(self, writer: LogWriter) -> str:
        last = max(self._last_id, writer.read(lambda book: book.last_job_id))
        self._last_id = next_job_id(self._maker.clock.now_s(), last)
        return self._last_id


def action_for(there: JobRow, wanted: JobRow) -> Action:
    """Return what makes the job `there` as it is `wanted`: what its target holds can only be rebuilt."""
    before, after = there.spec, wanted.spec
    if there.key.table_id != wanted.key.table_id or before.consumer != after.consumer:
        return Action.RESYNC
    return Action.UNCHANGED if before == after else Action.UPDATE


def _decide(draft: PendingChanges, there: JobRow | None, item: Registration) -> CheckedJob:
    action = Action.CREATE if there is None else action_for(there, item.row)
    checked = CheckedJob(action, item.row.key.table_id, item.row.spec_json)
    if there is not None:
        checked = replace(checked, job_id=there.job_id, there_id=there.key.table_id, there_json=there.spec_json)
    try:
        if there is None:
            draft.decide(Register((item,)))
        elif action is Action.RESYNC:
            draft.decide(Resync(there, item))
    except PermanentError as error:
        return replace(checked, error=error)
    except Conflict as error:  # another of these is the same job, by another spelling of its table
        return replace(checked, error=InvalidRequest(f"{error.message}, by another of these", about="job.name"))
    return checked
