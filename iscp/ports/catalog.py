"""The port to tables: which there are, and what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import ProbeState, TargetLog, TargetSeen
from iscp.model.query_plan import QueryShape
from iscp.model.values.progress import TableSize

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A Delta table as it is now: `columns` maps names to type names, in order; `table_id` is its metadata id.

    `schema_json` is its schema as Delta and Spark write it. `target_fault`: why it cannot be stored in a target, and
    the remedy. `void`: paths of the columns, and of fields within them, that are of the type void, which nobody can
    read. `collated`: columns with texts that compare in a way of their own. `sink_seq`: that of the last commit of a
    job that keeps the table, and `sink_job_id` its registration, if the table has rows of it (empty: it has none, or
    the newest commits do not say).
    """

    table_id: str
    name: str
    uri: str
    version: int
    committed_at_s: float
    columns: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    sink_seq: int = 0
    empty: bool = True
    schema_json: str = ""
    target_fault: tuple[str, str] = ("", "")
    void: tuple[str, ...] = ()
    collated: tuple[str, ...] = ()
    sink_job_id: str = ""


class Catalog(Protocol):
    """Finds tables; raises TableNotFound."""

    def describe(self, table: str) -> TableDescription:
        """Describe `table`: a path, a URI, or `db.table` of the configured catalog."""

    def has_version(self, uri: str, version: int) -> bool:
        """Return whether the log still has this version."""

    def newest_version(self, uri: str) -> int:
        """Return the newest version, at a cost that does not follow the table's size, unlike `describe`."""

    def size(self, uri: str) -> TableSize:
        """Return the size of the newest version, as its log says. Raises StorageError too."""

    def normalize(self, uri: str) -> str:
        """Return the one spelling of a path or URI, whether or not a table is there."""

    def locate(self, table: str) -> str:
        """Locate a table as `normalize` does, and `db.table` of the configured catalog, which raises TableNotFound if
        it has none.

        Raises EngineError too.
        """

    def refuse_links(self, table: str) -> None:
        """Raises InvalidRequest where `table`, as `locate` has it, is named by a path that leads through a link.

        A job reads the table that the link led to when it was registered, and would not see it lead to another.
        """

    def logs_at(self, uri: str) -> frozenset[TargetLog]:
        """Return the kinds of logs that lie at this place itself; none: neither a table nor an index is there."""

    def table_around(self, uri: str) -> str:
        """Return a table or index within whose directory this place lies, or that lies in the place's own; empty if
        none was found.
        """

    def missing_parent(self, uri: str) -> str:
        """Return the directory in which this place lies if it is not there; empty if it is, or the store has none."""

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        """Return what a query over tables comes to, by their names in it and their schemas; it is not run.

        Raises InvalidRequest if the engine does not take it, if it gives other rows each time, or if it is of something
        else than these tables.
        """

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        """Return why the engine would not take `condition` as a filter of the table's rows; empty if it would.

        Raises InvalidRequest if it is of something else than the rows: a table, a file, what a function reaches.
        """


class LogProbe(Protocol):
    """Probes a log of one kind for its next commit, by that file's name: no listing and no Spark job where none came.

    Raises TableNotFound, StorageError.
    """

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        """Return the state at the newest version, from `seen` on; `seen` itself if nothing moved.

        Only the version is known of a `seen` without a stamp; a version lower than it means a recreated log.
        """

    def first_probe(self, table_uri: str) -> ProbeState: ...


class CommitProbe(LogProbe, Protocol):
    """Probes the logs of sources, which are Delta tables, and says where any table lies."""

    def remote(self, table_uri: str) -> bool:
        """Return whether a probe goes over a network, and so may take long; then many may be under way at once."""

    def place(self, table_uri: str) -> str:
        """Return what answers, or hangs, for all tables there: a mounted file system, or a bucket. No table is
        touched.
        """

    def newest_repair(self, table_uri: str, after: int, until: int) -> int:
        """Return the newest repair (model.job.source_holds) of the commits (`after`, `until`]; 0: none is known of.

        Reads the beginnings of their files, at most of so many as REPAIR_COMMITS_MAX, the newest of them.
        """


class LogNotices(Protocol):
    """Notices commits to tables. It may miss some, and notice what is none: a probe finds out in any case."""

    def follow(self, table_uri: str) -> None:
        """Notice commits to this table from now on; one that it cannot follow is left to probes. Never waits.

        It is noticed once as soon as it is followed, as there may have been a commit before.
        """

    def leave(self, table_uri: str) -> None: ...

    def close(self) -> None: ...

    def counters(self) -> Mapping[str, int]: ...


class TargetProbe(Protocol):
    """Probes whether a target still holds what was applied to it: as CommitProbe where nobody has touched it."""

    def location(self, row: JobRow, seen: TargetSeen | None) -> str:
        """Return its URI, without touching it; empty if there is none."""

    def probe(self, row: JobRow, seen: TargetSeen | None) -> TargetSeen:
        """Probe the target, and return `seen` itself if nothing moved. Raises TargetLost, StorageError."""
