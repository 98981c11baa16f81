"""Lines of the nodes' logs: which are wanted, which belong to a job, and what a node answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iscp.core.settings.config import LogLevel

LINES_MAX = 10_000
"""Lines of one node's log in one answer; a request for more is refused."""


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The place up to which a node's log has been read. `life` is one process of the node; `number` its last line, from
    1.
    """

    life: int
    number: int


@dataclass(frozen=True, slots=True)
class JobOfLines:
    """A job, and all names under which lines of a log may have its table: its id, its name and its URI."""

    job_id: str
    name: str
    account: str
    tables: tuple[str, ...]

    def named_in(self, fields: Mapping[str, object]) -> bool:
        """Return whether a line with these fields is about the job, or about its table and no other job.

        The fields are those of `iscp.core.job.logged_jobs`.
        """
        if "job_id" in fields:
            return fields["job_id"] == self.job_id
        if isinstance(several := fields.get("job_ids"), list):
            return self.job_id in several
        shard = str(fields.get("shard", "")).partition("/")[0]
        if fields.get("table") not in self.tables and shard not in self.tables:
            return False
        return fields.get("job", self.name) == self.name and fields.get("account", self.account) == self.account


@dataclass(frozen=True, slots=True)
class LogQuery:
    """The lines after `after` of `level` or worse, or without `after` the newest `tail` (0: LINES_MAX).

    With `since_s` only lines of the last so many seconds by the node's clock count; 0: all that are retained.
    """

    after: LogPlace | None = None
    since_s: float = 0.0
    tail: int = 0
    level: LogLevel = LogLevel.DEBUG
    job: JobOfLines | None = None


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a node's log: a JSON object, logged at `at_s` (Unix seconds)."""

    number: int
    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class LogPage:
    """The answer of a node to a LogQuery, the oldest line first; the next query's `after` is `place`.

    `lost` counts lines after the query's `after` that are no longer retained. `restarted` is set if the query's `after`
    is of a former life. `fault` says why the node did not answer; then there is nothing else.
    """

    node_id: str
    place: LogPlace = LogPlace(0, 0)
    lost: int = 0
    restarted: bool = False
    fault: str = ""
    lines: tuple[LogLine, ...] = ()
