"""Commits that are kept in memory (port RetainedCommits)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from iscp.model.job.iteration import Bounds
from iscp.model.values.errors import IscpError
from iscp.model.values.progress import TableSize
from iscp.ports.consumer import TablePlace
from iscp.ports.source import ChangeSet, ChangesUnavailableError, SourceRange
from iscp.ports.system import Guard
from tests.fakes.pipeline import FakeSource

RETAINED = TableSize(10, 500)


class FakeRetainedCommits:
    """`gone`: versions that cannot be kept. The next ones raise `faults`.

    What is kept is read from `origin`, a source that has lost nothing.
    """

    def __init__(self, origin: FakeSource | None = None) -> None:
        self.origin = origin
        self.versions: list[int] = []
        self.gone: set[int] = set()
        self.faults: list[IscpError] = []
        self.reads = 0

    def retain(self, session: object, table: TablePlace, version: int, guard: Guard) -> TableSize:
        if self.faults:
            raise self.faults.pop(0)
        if version in self.gone:
            raise ChangesUnavailableError(f"version {version} is gone")
        self.versions.append(version)
        return RETAINED

    def remove(self, table: TablePlace) -> None:
        self.versions.clear()

    def retain_all_of(self, source: FakeSource) -> None:
        """All commits by now, whatever becomes of the source."""
        self.origin = copy(source)
        self.origin.gone, self.origin.feeds = set(), []
        self.versions = [*range(1, source.version + 1)]

    def resolve(
        self, table: TablePlace, from_version: int, to_version: int | None, bounds: Bounds
    ) -> SourceRange | None:
        last = from_version
        while last + 1 in self.versions:
            last += 1
        if self.origin is None or last == from_version:
            return None
        start, end = (self.origin.at(table.uri, version) for version in (from_version, last))
        return replace(end, from_version=from_version, from_at_s=start.to.at_s, changes_data=True)

    def columns(self, table: TablePlace, span: SourceRange) -> tuple[str, ...]:
        assert self.origin is not None
        return self.origin.columns(table.uri, span.to.version)

    def read(
        self, session: object, table: TablePlace, span: SourceRange, columns: Sequence[str], readers: int
    ) -> ChangeSet:
        assert self.origin is not None
        self.reads += 1
        return self.origin.read_cdf(session, table.uri, span, columns, readers)
