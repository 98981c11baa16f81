"""The notes that are stored beside a view's rows, for processes that have not seen the view.

They are the view's query as Spark has read it once, and what former refreshes took. Nothing depends on either: without
the first Spark analyzes the query again, without the second a refresh knows of no former ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from iscp.core.algebra.duck_text import translate
from iscp.core.algebra.kept_input import KeptInput
from iscp.core.algebra.stored_query import QUERY_BYTES_MAX, QueryOrigin, StoredQuery, query_from_json, query_to_json
from iscp.core.query.refresh_choice import RefreshSample, samples_from_json, samples_to_json, with_sample
from iscp.core.values.errors import StorageError
from iscp.ports.sink import TargetNotes
from iscp.views.analysis.query_analysis import AnalyzedQuery, algebra_of, depth_of_stored
from iscp.views.refresh.refresh_parts import Part, measured_as

log = logging.getLogger(__name__)

QUERY_NOTE, REFRESH_NOTE = "query", "refreshes"
"""The names of the notes in the target's directory."""

REFRESHES_BYTES_MAX = 64 * 1024
"""Bytes that are read of what former refreshes took; a larger file was written by somebody else."""


@measured_as(Part.PLAN)
def read_query(query: AnalyzedQuery) -> StoredQuery:
    """Return an analyzed query as it is stored; without its algebra if something in it is computed by Spark alone."""
    root = algebra_of(query)
    if translate(root).gaps:
        return StoredQuery()
    above = depth_of_stored(query)
    kept = None if above is None else KeptInput(root, above, query.sums is not None)
    return StoredQuery(root, kept if kept is not None and kept.is_sound else None)


class ViewNote:
    """A note of one view. Not safe for threads, as all of a view's memory. `notes` are those of its target."""

    def __init__(self, notes: TargetNotes, name: str, bytes_max: int) -> None:
        self._notes, self._name, self._bytes_max = notes, name, bytes_max
        self._content: bytes | None = None
        self._reported = False

    def read(self) -> bytes:
        """Return the content of the note, empty if it cannot be had."""
        try:
            self._content = self._notes.read_note(self._name, self._bytes_max) or b""
        except StorageError as error:
            self._report(error)
            self._content = b""
        return self._content

    def store(self, content: bytes) -> None:
        """Store the content, unless it is there already; a fault is logged once, and harms nobody."""
        if content == (self.read() if self._content is None else self._content):
            return
        try:
            self._notes.write_note(self._name, content)
            self._content = content
        except StorageError as error:
            self._report(error)

    def _report(self, error: StorageError) -> None:
        if not self._reported:
            log.warning("view.note_unstored", extra={"note": self._name, "error": str(error)})
            self._reported = True


class QueryNote:
    """The stored query of one view.

    The file follows from the query, the schemas of its tables and the versions of the programs alone. So it does not
    matter who has written it last. `origin` has no schemas, which are given with each call.
    """

    def __init__(self, notes: TargetNotes, origin: QueryOrigin) -> None:
        self._note, self._own = ViewNote(notes, QUERY_NOTE, QUERY_BYTES_MAX), origin
        self._found: tuple[StoredQuery, QueryOrigin] | None = None

    def read(self, schemas: Mapping[str, str]) -> StoredQuery | None:
        """Return the query over tables of these schemas, as their logs have them, or None if Spark has to read it."""
        return query_from_json(self._note.read(), self._origin(schemas))

    def learn(self, query: StoredQuery, schemas: Mapping[str, str]) -> None:
        """Take the query that was read over tables of these schemas, to be stored once a refresh has succeeded."""
        self._found = query, self._origin(schemas)

    def store(self) -> None:
        """Store what was learned last."""
        if self._found is not None:
            content, self._found = query_to_json(*self._found), None
            if content is not None:
                self._note.store(content)

    def _origin(self, schemas: Mapping[str, str]) -> QueryOrigin:
        return replace(self._own, schemas=schemas)


class RefreshNote:
    """The times that former refreshes of one view took, of whichever process."""

    def __init__(self, notes: TargetNotes) -> None:
        self._note = ViewNote(notes, REFRESH_NOTE, REFRESHES_BYTES_MAX)
        self._samples: tuple[RefreshSample, ...] | None = None
        self._is_stored = True

    @property
    def samples(self) -> tuple[RefreshSample, ...]:
        if self._samples is None:
            self._samples = samples_from_json(self._note.read())
        return self._samples

    def remember(self, sample: RefreshSample) -> None:
        self._samples, self._is_stored = with_sample(self.samples, sample), False

    def store(self) -> None:
        """Store what was remembered since; of processes that do so at once the last one's counts."""
        if not self._is_stored:
            self._is_stored = True
            self._note.store(samples_to_json(self.samples))
