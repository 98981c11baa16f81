"""Finds the jobs and tables that users name, in the owner's book."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iscp.coordination.jobs.job_book import JobBook
from iscp.core.api.api_requests import JobName
from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import JobNotFound, TableNotFound, no_jobs_on
from iscp.core.values.ids import JobKey
from iscp.ports.access.callers import still_wanted
from iscp.ports.catalog import Catalog
from iscp.runtime.owner.log.job_log_writer import LogWriter
from iscp.runtime.reads.account_turns import AccountTurns, TurnBounds

LOOKUPS = TurnBounds(node_max=64, account_max=16, timeout_s=30.0, waits=False)
"""Bounds of the lookups of tables by their places, whose links are followed."""


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
        self._turns = AccountTurns(LOOKUPS, "iscp-lookup", "lookup of the table", "Name the table as its jobs do")

    def table_ids(self, writer: LogWriter, table: str, account: str = "") -> tuple[str, ...]:
        """Return a table that has jobs, by id, name, or path; several, the newest first, where it was dropped and
        recreated.

        Raises TableNotFound where it has no jobs, be it that others than this account have some (empty: any account).
        """

        def find(book: JobBook, name: str) -> tuple[str, ...]:
            found = (*([name] if book.has_jobs_on(name) else ()), *book.tables_called(name))
            return tuple(each for each in found if not account or _is_used(book, each, account))

        found = writer.read(lambda book: find(book, table))
        if not found:
            path = self._normalized(table, account)
            found = writer.read(lambda book: find(book, path))
        if not found:
            raise no_jobs_on(table)
        return found

    def _normalized(self, table: str, account: str) -> str:
        """Return a table's place, whose links are followed: that may hang."""
        return self._turns.run(account, lambda: self._catalog.normalize(table), still_wanted)

    def of_account(self, writer: LogWriter, account: str) -> dict[str, str]:
        """Return the tables that have jobs of the account: by id, the name under which its first job registered it."""

        def find(book: JobBook) -> dict[str, str]:
            rows = (row for each in book.tables() for row in reversed(book.jobs_on(each)))
            return {row.key.table_id: row.table_name for row in rows if row.key.account == account}

        return writer.read(find)

    def touched_by(self, writer: LogWriter, table: str, account: str = "") -> TouchedTables:
        """Return the tables that jobs of the account (empty: any) touch. Raises TableNotFound if none of them reads
        it.
        """
        try:
            on = self.table_ids(writer, table, account)
        except TableNotFound:
            path = self._normalized(table, account)
            reading = writer.read(lambda book: _reading(book, [path], account))
            if not reading:
                raise
            return TouchedTables((), tuple(dict.fromkeys(reading.values())), len(reading))

        def find(book: JobBook) -> TouchedTables:
            uris = {row.table_uri for each in on for row in book.jobs_on(each)}
            reading = _reading(book, uris, account)
            others = tuple(each for each in dict.fromkeys(reading.values()) if each not in on)
            return TouchedTables(on, others, len(book.select(account, on)) + len(reading))

        return writer.read(find)

    def row(self, writer: LogWriter, job: JobName) -> JobRow:
        """Raises JobNotFound, TableNotFound."""
        for table_id in self.table_ids(writer, job.table, job.account):
            key = JobKey(job.account, table_id, job.name)
            row: JobRow | None = writer.read(lambda book, key=key: book.job(key))  # type: ignore[misc]
            if row is not None:
                return row
        raise JobNotFound(
            f"there is no job {job.name!r} on {job.table}", about="job", remedy="See `iscp-admin job list`"
        )

    def of_request(self, writer: LogWriter, job: JobName, request_id: str) -> JobRow | None:
        """Return the registration, dropped or not, that an earlier request of this id made or ended: its answer was
        lost.
        """

        row = writer.read(lambda book: book.request(job.account, request_id)) if request_id else None
        return row if row is not None and row.key.job_name == job.name else None


def _is_used(book: JobBook, table_id: str, account: str) -> bool:
    return any(row.key.account == account for row in book.jobs_on(table_id))


def _reading(book: JobBook, uris: Iterable[str], account: str) -> dict[str, str]:
    """Return the ids of jobs of the account (empty: any) that read one of these besides their own, with that of their
    own.
    """
    found = {job_id: each for uri in uris for job_id, each in book.jobs_reading(uri).items()}
    if not account:
        return found
    rows = {job_id: book.by_id(job_id) for job_id in found}
    return {job_id: each for job_id, each in found.items() if (row := rows[job_id]) and row.key.account == account}
