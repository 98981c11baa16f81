"""A view's query as Spark has read it once, stored beside the view's rows for processes that have no Spark.

The file follows from the query, the schemas of its tables and the versions of the programs alone. So it does not matter
who has written it last, nor whether it is there: without it Spark analyzes the query again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from iscp.core.algebra.duck_text import translate
from iscp.core.algebra.kept_input import KeptInput
from iscp.core.algebra.stored_query import QUERY_BYTES_MAX, QueryOrigin, StoredQuery, query_from_json, query_to_json
from iscp.core.values.errors import StorageError
from iscp.ports.sink import TargetNotes
from iscp.views.analysis.query_analysis import AnalyzedQuery, algebra_of, depth_of_stored
from iscp.views.refresh.refresh_parts import Part, measured_as

log = logging.getLogger(__name__)

NOTE = "query"
"""The name of the note in the target's directory."""


@measured_as(Part.PLAN)
def read_query(query: AnalyzedQuery) -> StoredQuery:
    """Return an analyzed query as it is stored; without its algebra if something in it is computed by Spark alone."""
    root = algebra_of(query)
    if translate(root).gaps:
        return StoredQuery()
    above = depth_of_stored(query)
    kept = None if above is None else KeptInput(root, above, query.sums is not None)
    return StoredQuery(root, kept if kept is not None and kept.is_sound else None)


class QueryNote:
    """The stored query of one view. Not safe for threads, as all of a view's memory.

    `notes` are those of its target. `origin` has no schemas, which are given with each call.
    """

    def __init__(self, notes: TargetNotes, origin: QueryOrigin) -> None:
        self._notes, self._own = notes, origin
        self._content: bytes | None = None
        self._found: tuple[StoredQuery, QueryOrigin] | None = None
        self._reported = False

    def read(self, schemas: Mapping[str, str]) -> StoredQuery | None:
        """Return the query over tables of these schemas, as their logs have them, or None if Spark has to read it."""
        return query_from_json(self._read(), self._origin(schemas))

    def learn(self, query: StoredQuery, schemas: Mapping[str, str]) -> None:
        """Take the query that was read over tables of these schemas, to be stored once a refresh has succeeded."""
        self._found = query, self._origin(schemas)

    def store(self) -> None:
        """Store what was learned last, unless it is there already; a fault is logged once, and harms nobody."""
        if self._found is None:
            return
        content, self._found = query_to_json(*self._found), None
        there = self._read() if self._content is None else self._content
        if content is None or content == there:
            return
        try:
            self._notes.write_note(NOTE, content)
            self._content = content
        except StorageError as error:
            self._report(error)

    def _origin(self, schemas: Mapping[str, str]) -> QueryOrigin:
        return replace(self._own, schemas=schemas)

    def _read(self) -> bytes:
        """Return the content of the note, empty if it cannot be had."""
        try:
            self._content = self._notes.read_note(NOTE, QUERY_BYTES_MAX) or b""
        except StorageError as error:
            self._report(error)
            self._content = b""
        return self._content

    def _report(self, error: StorageError) -> None:
        if not self._reported:
            log.warning("view.query_unstored", extra={"error": str(error)})
            self._reported = True
