"""Index the book's jobs by the places that they write and read, and by the names of their tables.

Each index is built when it is first needed, of all rows: a new owner has no time for them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from iscp.coordination.jobs.table_paths import Places
from iscp.core.job.job_row import JobRow
from iscp.core.job.several_tables import further_tables


def target_of(spec_json: str) -> str:
    """Return the target in a job_spec, without the cost of checking all of it; none of one that cannot be read."""
    try:
        target = json.loads(spec_json).get("iteration", {}).get("consumer", {}).get("target", "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return target if isinstance(target, str) else ""


class BookIndex:
    """Invariant: what has been made is that of all rows that `rows` gives."""

    def __init__(self, rows: Callable[[], Iterable[JobRow]]) -> None:
        self._rows = rows
        self._targets: Places | None = None
        self._sources: Places | None = None
        self._called: dict[str, dict[str, int]] | None = None
        self._readers: dict[str, dict[str, str]] | None = None

    def readers(self, uri: str) -> dict[str, str]:
        """Return the ids of the jobs that read the table at `uri` besides their own, with those of their tables."""
        if self._readers is None:
            self._readers = {}
            for row in self._rows():
                self._read(row)
        return self._readers.get(uri, {})

    def reread(self, before: JobRow, row: JobRow) -> None:
        """Index a job whose spec has changed."""
        self._read_no_more(before)
        self._read(row)

    def _read(self, row: JobRow) -> None:
        if self._readers is not None:
            for uri in further_tables(row):
                self._readers.setdefault(uri, {})[row.job_id] = row.key.table_id

    def _read_no_more(self, row: JobRow) -> None:
        if self._readers is not None:
            for uri in further_tables(row):
                jobs = self._readers.get(uri, {})
                jobs.pop(row.job_id, None)
                if not jobs:
                    self._readers.pop(uri, None)

    def targets(self) -> Places:
        """Return the places where the jobs store their targets."""
        if self._targets is None:
            self._targets = Places(letters=True)
            for row in self._rows():
                self._targets.add(target_of(row.spec_json), row.job_id)
        return self._targets

    def sources(self) -> Places:
        """Return the tables that the jobs are on, by their URIs."""
        if self._sources is None:
            self._sources = Places()
            for row in self._rows():
                self._sources.add(row.table_uri, row.job_id)
        return self._sources

    def tables_called(self, name: str) -> tuple[str, ...]:
        """Return the ids of tables that have this name, the newest first."""
        if self._called is None:
            self._called = {}
            for row in self._rows():
                self._call(row, 1, _names(row))
        return tuple(reversed(self._called.get(name, {})))

    def add(self, row: JobRow) -> None:
        """Index a job that is new."""
        if self._targets is not None:
            self._targets.add(target_of(row.spec_json), row.job_id)
        if self._sources is not None:
            self._sources.add(row.table_uri, row.job_id)
        self._read(row)
        self._call(row, 1, _names(row))

    def remove(self, row: JobRow) -> None:
        self._read_no_more(row)
        self._call(row, -1, _names(row))
        if self._targets is not None:
            self._targets.remove(target_of(row.spec_json), row.job_id)
        if self._sources is not None:
            self._sources.remove(row.table_uri, row.job_id)

    def follow(self, before: JobRow, row: JobRow) -> None:
        """Index a job that has gone on to a table of another id, at the same place."""
        self._call(before, -1, _followed(before))
        self._call(row, 1, _followed(row))

    def _call(self, row: JobRow, by: int, names: Iterable[str]) -> None:
        if self._called is None:
            return
        for name in names:
            jobs = self._called.setdefault(name, {})
            jobs[row.key.table_id] = jobs.get(row.key.table_id, 0) + by
            if not jobs[row.key.table_id]:
                del jobs[row.key.table_id]
            if not jobs:
                del self._called[name]


def _names(row: JobRow) -> set[str]:
    """Return the table's names other than the id of its key."""
    return {row.table_uri, row.table_name, *_followed(row)}


def _followed(row: JobRow) -> tuple[str, ...]:
    return () if (followed := row.source_id) == row.key.table_id else (followed,)
