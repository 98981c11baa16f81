"""The direct ways of a view, found in Spark's plan once and stored beside its rows for other processes.

The file follows from the query, the schemas of its tables and the versions of the programs alone. So it does not matter
who has written it last, nor whether it is there: without it Spark analyzes the query again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace

from iscp.adapters.system.late_imports import T
from iscp.core.algebra.algebra import Rel
from iscp.core.algebra.duck_text import translate
from iscp.core.query.direct_ways import NO_WAYS, DirectWays, ResultColumn
from iscp.core.query.direct_ways_codec import WAYS_BYTES_MAX, WaysOrigin, ways_from_json, ways_to_json
from iscp.core.values.errors import StorageError
from iscp.ports.sink import TargetNotes
from iscp.views.analysis.query_analysis import AnalyzedQuery
from iscp.views.catalyst.algebra_reader import read_algebra
from iscp.views.direct.group_plan import find_group_query
from iscp.views.direct.join_plan import find_join_query
from iscp.views.refresh.refresh_parts import Part, measured_as

log = logging.getLogger(__name__)

NOTE = "ways"
"""The name of the note in the target's directory."""


@measured_as(Part.PLAN)
def find_ways(query: AnalyzedQuery) -> DirectWays:
    """Return the direct ways of an analyzed query."""
    grouped = find_group_query(query.catalyst, query.root, query.columns)
    joined = find_join_query(query.catalyst, query.root)
    root = _translatable(query)
    if grouped is None and joined is None and root is None:
        return NO_WAYS
    columns = [ResultColumn(each.name, _kind(each.dataType)) for each in query.columns.fields]
    return DirectWays(tuple(columns), grouped, joined, root)


def _kind(kind: T.DataType) -> str:
    """Return the name of a type that has no other within it, as all have in results that follow directly."""
    return "string" if isinstance(kind, T.StringType) else str(json.loads(kind.json()))


def _translatable(query: AnalyzedQuery) -> Rel | None:
    """Return the algebra of a query, or None if something in it is computed by Spark alone."""
    if query.undecided:
        return None
    names = {int(each.plan.rdd().id()): each.operator.table for each in query.root.walk() if each.operator.table}
    root = read_algebra(query.catalyst, query.root.plan, names)
    found = translate(root)
    return None if found.gaps else root


class StoredWays:
    """The stored direct ways of one view. Not safe for threads, as all of a view's memory.

    `notes` are those of its target. `query` has no schemas, which are given with each call.
    """

    def __init__(self, notes: TargetNotes, query: WaysOrigin) -> None:
        self._notes, self._query = notes, query
        self._content: bytes | None = None
        self._found: tuple[DirectWays, WaysOrigin] | None = None
        self._reported = False

    def read(self, schemas: Mapping[str, str]) -> DirectWays | None:
        """Return the ways over tables of these schemas, as their logs have them, or None if Spark has to find them."""
        return ways_from_json(self._read(), self._origin(schemas))

    def learn(self, ways: DirectWays, schemas: Mapping[str, str]) -> None:
        """Take the ways that were found over tables of these schemas, to be stored once a refresh has succeeded."""
        self._found = ways, self._origin(schemas)

    def store(self) -> None:
        """Store what was learned last, unless it is there already; a fault is logged once, and harms nobody."""
        if self._found is None:
            return
        content, self._found = ways_to_json(*self._found), None
        there = self._read() if self._content is None else self._content
        if content is None or content == there:
            return
        try:
            self._notes.write_note(NOTE, content)
            self._content = content
        except StorageError as error:
            self._report(error)

    def _origin(self, schemas: Mapping[str, str]) -> WaysOrigin:
        return replace(self._query, schemas=schemas)

    def _read(self) -> bytes:
        """Return the content of the note, empty if it cannot be had."""
        try:
            self._content = self._notes.read_note(NOTE, WAYS_BYTES_MAX) or b""
        except StorageError as error:
            self._report(error)
            self._content = b""
        return self._content

    def _report(self, error: StorageError) -> None:
        if not self._reported:
            log.warning("view.ways_unstored", extra={"error": str(error)})
            self._reported = True
