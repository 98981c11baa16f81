"""Builds in memory: what a builder of an owner knows, which obeys; and a BuildAdmin of one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from iscp.model.api.api_requests import JobName
from iscp.model.build.build_progress import BuildView, KnownBuilds
from iscp.model.values.errors import InvalidRequest, IscpError, TableNotFound


@dataclass
class FakeTermBuilds:
    """Port TermBuilds; `changes` is what it was given, in order. `fault` is raised by all methods."""

    builds: KnownBuilds = field(default_factory=KnownBuilds)
    changes: list[tuple[str, str, object]] = field(default_factory=list)
    fault: IscpError | None = None

    def known(self) -> KnownBuilds:
        if self.fault is not None:
            raise self.fault
        return self.builds

    def split(self, table_id: str, ranges: Sequence[int]) -> None:
        self.changes.append(("split", table_id, list(ranges)))

    def merge(self, table_id: str, ranges: Sequence[int]) -> None:
        self.changes.append(("merge", table_id, list(ranges)))

    def prioritize(self, table_id: str, priority: int) -> None:
        self.changes.append(("prioritize", table_id, priority))
        self.builds = replace(self.builds, priorities={**self.builds.priorities, table_id: priority})


@dataclass
class FakeBuilds:
    """Port BuildAdmin: `views` are the builds of each call, in the end the last; each table has jobs but /none.

    `first`: the table whose turn is next. `changes` is what was wanted, in order.
    """

    views: list[list[BuildView] | IscpError] = field(default_factory=list)
    first: str = ""
    changes: list[tuple[object, ...]] = field(default_factory=list)

    def builds(self, table: str, account: str = "") -> list[BuildView]:
        self._check(table)
        found = self.views.pop(0) if len(self.views) > 1 else (self.views or [[]])[0]
        if isinstance(found, IscpError):
            raise found
        return [view for view in found if table in ("", view.table)]

    def abort(self, job: JobName) -> int:
        found = [view for view in self.builds(job.table) if job.name in ("", *view.jobs)]
        if not found:
            raise InvalidRequest(f"{job.table} is not being built", about="table", remedy="See `iscp-admin build list`")
        self.changes.append(("abort", job))
        return sum(len(view.tasks) for view in found)

    def prioritize(self, table: str) -> bool:
        self._check(table)
        changed, self.first = self.first != table, table
        return changed

    def split(self, table: str, range_id: int) -> int:
        self._check(table)
        self.changes.append(("split", table, range_id))
        return 8

    def merge(self, table: str, range_id: int) -> int:
        self._check(table)
        self.changes.append(("merge", table, range_id))
        return 1

    def _check(self, table: str) -> None:
        if table == "/none":
            raise TableNotFound("/none has no jobs", about="table", remedy="See `iscp-admin job list`")
