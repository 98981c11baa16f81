"""What tables there are, and what they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from iscp.core.job.job_row import JobRow
from iscp.core.job.start_rule import ProbeState
from iscp.core.job.target_state import TargetSeen
from iscp.core.query.query_plan import QueryShape
from iscp.core.values.progress import TableSize

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A Delta table as it is now: `columns` maps names to type names, in order; `table_id` is its metadata id.

    `schema_json` is its schema as Delta and Spark write it. `target_fault`: why it cannot be kept, and the remedy.
    `void`: paths of the columns, and of fields within them, that are of the type void, which nobody can read.
    `collated`: columns with texts that compare in a way of their own.
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


class Catalog(Protocol):
    """Finds tables; raises TableNotFound."""

    def describe(self, table: str) -> TableDescription:
        """`table`: a path, a URI, or `db.table` of the configured catalog."""

    def has_version(self, uri: str, version: int) -> bool:
        """Whether the log still has this version."""

    def newest_version(self, uri: str) -> int:
        """At a cost that does not follow the table's size, unlike `describe`."""

    def size(self, uri: str) -> TableSize:
        """Of the newest version, as its log says; raises StorageError too."""

    def normalize(self, uri: str) -> str:
        """The one spelling of a path or URI, whether or not a table is there."""

    def locate(self, table: str) -> str:
        """As `normalize`, also of `db.table` of the configured catalog, which raises TableNotFound where it has none.

        Raises EngineError too.
        """

    def refuse_links(self, table: str) -> None:
        """Raises InvalidRequest where `table`, as `locate` has it, is named by a path that leads through a link.

        A job reads the table that the link led to when it was registered, and would not see it lead to another.
        """

    def table_around(self, uri: str) -> str:
        """A table within whose directory this place lies, or that lies in the place's own; empty: none was found."""

    def missing_parent(self, uri: str) -> str:
        """The directory in which this place lies, where it is not there; empty: it is, or the store has none."""

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        """What a query over tables comes to, by their names in it and their schemas; it is not run.

        Raises InvalidRequest where the engine does not take it, where it gives other rows each time, or where it is of
        something else than these tables.
        """

    def release(self, uri: str, holder: str) -> None:
        """What the table keeps for `holder` (see `ChangeSource.hold`) it need not keep any more.

        Raises Conflict, EngineError too.
        """

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        """Why the engine would not take `condition` as a filter of the table's rows; empty: it would.

        Raises InvalidRequest where it is of something else than the rows: a table, a file, what a function reaches.
        """


class CommitProbe(Protocol):
    """Probes for the next commit file by name: no listing and no Spark job for a table that did not move.

    Raises TableNotFound, StorageError.
    """

    def remote(self, table_uri: str) -> bool:
        """Whether a probe goes over a network, and so may take long; of these many may be under way at once."""

    def place(self, table_uri: str) -> str:
        """What answers, or hangs, for all tables there: a mounted file system, or a bucket. Touches none of them."""

    def probe(self, table_uri: str, seen: ProbeState) -> ProbeState:
        """The newest version, going on from `seen`; `seen` itself where nothing moved.

        Of a `seen` without a stamp only the version is known; a version lower than it means a recreated log.
        """

    def first_probe(self, table_uri: str) -> ProbeState: ...

    def newest_repair(self, table_uri: str, after: int, until: int) -> int:
        """The newest repair (iscp.core.job.commit_route) of the commits (`after`, `until`]; 0: none is known of.

        Reads the beginnings of their files, at most of so many as REPAIR_COMMITS_MAX, the newest of them.
        """


class TargetProbe(Protocol):
    """Probes whether a target still holds what was applied to it: as CommitProbe where nobody has touched it."""

    def location(self, row: JobRow, seen: TargetSeen | None) -> str:
        """Its URI, without touching it; empty where there is none."""

    def probe(self, row: JobRow, seen: TargetSeen | None) -> TargetSeen:
        """`seen` itself where nothing moved. Raises TargetLost, StorageError."""
