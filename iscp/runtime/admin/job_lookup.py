"""Finds the jobs and tables that users name, in the owner's book."""

from __future__ import annotations

from dataclasses import dataclass

from iscp.coordination.jobs.job_book import JobBook
from iscp.core.api_requests import JobName
from iscp.core.errors import JobNotFound, TableNotFound, no_jobs_on
from iscp.core.ids import JobKey
from iscp.core.job_row import JobRow
from iscp.ports.catalog import Catalog
from iscp.runtime.owner.log.job_log_writer import LogWriter


@dataclass(frozen=True, slots=True)
class TouchedTables:
    """Ids of tables that a change of one concerns: `on` as `table_ids` has it, `reading` those of jobs that read
    it besides their own. `jobs`: how many jobs these are, together.
    """

    on: tuple[str, ...]
    reading: tuple[str, ...]
    jobs: int


class JobLookup:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def table_ids(self, writer: LogWriter, table: str) -> tuple[str, ...]:
        """A table that has jobs, by id, name, or path; several, the newest first, where it was dropped and recreated.

        Raises TableNotFound where it has no jobs.
        """
        found = writer.read(lambda book: (*([table] if book.has_jobs_on(table) else ()), *book.tables_called(table)))
        if not found:
            path = self._catalog.normalize(table)
            found = writer.read(lambda book: book.tables_called(path))
        if not found:
            raise no_jobs_on(table)
        return found

    def touched_by(self, writer: LogWriter, table: str) -> TouchedTables:
        """Raises TableNotFound where no job reads it."""
        try:
            on = self.table_ids(writer, table)
        except TableNotFound:
            reading = writer.read(lambda book: book.jobs_reading(self._catalog.normalize(table)))
            if not reading:
                raise
            return TouchedTables((), tuple(dict.fromkeys(reading.values())), len(reading))

        def find(book: JobBook) -> TouchedTables:
            uris = {row.table_uri for each in on for row in book.jobs_on(each)}
            reading = {job_id: each for uri in uris for job_id, each in book.jobs_reading(uri).items()}
            others = tuple(each for each in dict.fromkeys(reading.values()) if each not in on)
            return TouchedTables(on, others, len(book.select(tables=on)) + len(reading))

        return writer.read(find)

    def row(self, writer: LogWriter, job: JobName) -> JobRow:
        """Raises JobNotFound, TableNotFound."""
        for table_id in self.table_ids(writer, job.table):
            key = JobKey(job.account, table_id, job.name)
            row: JobRow | None = writer.read(lambda book, key=key: book.job(key))  # type: ignore[misc]
            if row is not None:
                return row
        raise JobNotFound(
            f"there is no job {job.name!r} on {job.table}", field="job", remedy="See `iscp-admin job list`"
        )

    def of_request(self, writer: LogWriter, job: JobName, request_id: str) -> JobRow | None:
        """The registration, dropped or not, that an earlier request of this id made or ended: its answer was lost."""

        def find(book: JobBook) -> JobRow | None:
            return book.by_id(book.request(request_id) or "")

        row = writer.read(find) if request_id else None
        same = row is not None and (row.key.account, row.key.job_name) == (job.account, job.name)
        return row if same else None
