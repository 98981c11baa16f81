"""What users want registered or made anew, checked against the catalog and the consumer before anything is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from iscp.coordination.draft import Register, Registration, Request, Resync
from iscp.core.admin import JobName, RegisterRequest, ResyncRequest
from iscp.core.errors import InvalidRequest, TableNotFound
from iscp.core.ids import JobKey, next_job_id
from iscp.core.job import JobRow
from iscp.core.spec import parse_spec
from iscp.ports.pipeline import Catalog, ConsumerKind, TableDescription
from iscp.ports.system import Clock
from iscp.runtime.log_writer import LogWriter

JOB_NAME_LENGTH_MAX = 200


class Intake:
    """Makes what the log's writer decides of what users ask, and hands it in under job_ids in their order."""

    def __init__(self, catalog: Catalog, kinds: Callable[[str], ConsumerKind], clock: Clock) -> None:
        self._catalog = catalog
        self._kinds = kinds
        self._clock = clock
        self._last_id = ""
        self._id_lock = threading.Lock()

    def registration(self, writer: LogWriter, request: RegisterRequest) -> Registration:
        """Raises InvalidRequest."""
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
        if there is not None and there.table_uri != source.uri:
            raise InvalidRequest(
                f"{source.uri} has the same table id as {there.table_uri}, on which this job is",
                field="job.name",
                remedy="Choose another name for the job on the copy",
            )
        # What is there already is answered so, whatever has become of its target meanwhile.
        item = self._item(request.job, request.spec_json, source, check=there is None)
        return replace(item, request_id=request.request_id)

    def resync(self, seen: JobRow, request: ResyncRequest) -> Resync:
        """The job `seen` on the table that its source is now, or on another. Raises InvalidRequest."""
        table = request.table or seen.table_name
        try:
            source = self._catalog.describe(table)
        except TableNotFound as error:
            raise TableNotFound(
                error.message, field="table", remedy="Name where the source is now, or unregister the job"
            ) from error
        job = JobName(table, seen.key.job_name, seen.key.account)
        item = self._item(job, request.spec_json or seen.spec_json, source, check=True)
        return Resync(seen, replace(item, request_id=request.request_id))

    def _item(self, job: JobName, spec_json: str, source: TableDescription, *, check: bool) -> Registration:
        spec = parse_spec(spec_json)
        kind = self._kinds(spec.consumer.kind)
        if check:
            kind.validate(spec.consumer, source, self._catalog)
        target = kind.target_of(spec.consumer, self._catalog)
        row = JobRow(
            key=JobKey(job.account, source.table_id, job.name),
            job_id="",
            spec_json=replace(spec, consumer=replace(spec.consumer, target=target)).to_json(),
            table_name=job.table,
            table_uri=source.uri,
            create_at_s=self._clock.now_s(),
        )
        return Registration(row, shared_target=kind.shared_target)

    def submit(self, writer: LogWriter, requests: Sequence[Request]) -> list[Future[Any]]:
        """Hand them to the writer, each for itself; raises as it does, and then none was taken.

        Ids come in the order in which the requests will be decided. One drawn before a check that takes its time
        could be overtaken by a registration that is dropped again, and its job never claim their target.
        """
        with self._id_lock:
            return writer.submit_all([self._numbered(writer, request) for request in requests])

    def _numbered(self, writer: LogWriter, request: Request) -> Request:
        match request:
            case Register(items):
                return Register(tuple(self._with_id(writer, item) for item in items))
            case Resync(seen, item):
                return Resync(seen, self._with_id(writer, item))
            case _:
                return request

    def _with_id(self, writer: LogWriter, item: Registration) -> Registration:
        last = max(self._last_id, writer.read(lambda book: book.last_job_id))
        self._last_id = next_job_id(self._clock.now_s(), last)
        return replace(item, row=replace(item.row, job_id=self._last_id))
