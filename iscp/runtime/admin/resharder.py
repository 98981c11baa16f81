"""Splits a table's key-hash ranges, and merges them: checks who may, and has it decided in the job log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iscp.coordination.jobs.reshard import Reshard
from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import InvalidRequest
from iscp.ports.catalog import Catalog
from iscp.ports.consumer import ConsumerKind
from iscp.runtime.admin.job_lookup import JobLookup
from iscp.runtime.admin.pending_requests import answer_of
from iscp.runtime.admin.request_validation import RequestValidator
from iscp.runtime.loop.conflict_retries import retry_conflicts
from iscp.runtime.owner.log.job_log_writer import LogWriter
from iscp.runtime.owner.owner_loop import OwnerLoop

TRIES_MAX = 3
"""Attempts of a split or a merge whose jobs change meanwhile; then it fails with the last attempt's error."""


class Resharder:
    """Reshard tables. `validator` is the one that gives job_ids to all that is registered."""

    def __init__(
        self, owner: OwnerLoop, catalog: Catalog, kinds: Callable[[str], ConsumerKind], validator: RequestValidator
    ) -> None:
        self._owner = owner
        self._lookup = JobLookup(catalog)
        self._kinds = kinds
        self._validator = validator

    def reshard(self, merge: bool, table: str, range_id: int, request_id: str) -> tuple[str, tuple[int, ...]]:
        """Return the table's id, and its ranges then. Raises TableNotFound, InvalidRequest."""
        # A conflict: a job came or went while this was checked.
        return retry_conflicts(lambda: self._reshard(merge, table, range_id, request_id), TRIES_MAX)

    def _reshard(self, merge: bool, table: str, range_id: int, request_id: str) -> tuple[str, tuple[int, ...]]:
        writer = self._owner.current_writer()
        table_id = self._table_id(writer, table)
        rows = writer.read(lambda book: book.jobs_on(table_id))
        if not merge:
            self._refuse_unsharded(table, rows)
        request = Reshard(table_id, merge, range_id, frozenset(row.registration for row in rows), "", request_id)
        (future,) = self._validator.submit(writer, [request])
        answer_of(future)
        return table_id, writer.read(lambda book: book.ranges(table_id))

    def _table_id(self, writer: LogWriter, table: str) -> str:
        found = tuple(dict.fromkeys(self._lookup.table_ids(writer, table)))
        if len(found) > 1:
            raise InvalidRequest(
                f"{table} was dropped and recreated, and has jobs on each: {', '.join(found)}",
                about="table",
                remedy="Name the id of the one that is meant",
            )
        return found[0]

    def _refuse_unsharded(self, table: str, rows: Sequence[JobRow]) -> None:
        """MERGEs of one Delta table conflict, and several watermarks equal no version of a source."""
        unfit = sorted({f"{row.key.job_name} ({why})" for row in rows if (why := self._unfit(row))})
        if unfit:
            raise InvalidRequest(
                f"{table} cannot be split for its jobs {', '.join(unfit)}",
                about="table",
                remedy="Unregister these, or leave it whole: only what has a watermark for each range can be split",
            )

    def _unfit(self, row: JobRow) -> str:
        consumer = row.spec.consumer
        try:
            sharded = self._kinds(consumer.kind).sharded
        except InvalidRequest as error:
            return f"{consumer.kind}: {error.message}"
        if not sharded:
            return f"{consumer.kind}: its sink is not sharded"
        return "" if consumer.key else f"{consumer.kind}: without a key"
