"""A case: a table, what is committed to it and how that is written, and who follows it. All of it can be made smaller.

Files and rows are numbers, counted modulo what there is: whatever is left out, the rest is a log that Delta's protocol
allows. The first of each enumeration is the plainest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from tests.random_logs.columns import FIRST_COLUMNS, PARTITIONS, Numbers, row_of


class Deed(StrEnum):
    INSERT = "insert"
    DELETE = "delete"
    UPDATE = "update"
    DROP = "drop a file"
    REWRITE = "rewrite a partition"
    """Nothing changes by it: OPTIMIZE, or REORG where there are deletion vectors."""
    ADD_AGAIN = "add a file again"
    """The file is there, as after a writer that has tried twice."""
    REMOVE_GONE = "remove a file that is not there"
    REMOVE_OTHER_VECTOR = "remove a file with a vector that it does not have"
    RESTORE = "restore a file"
    """It may be there meanwhile with another vector, or without one."""
    BESIDE = "add a file with another vector too"
    """The path is there twice then: the log has a file of its own for each vector."""
    OVERWRITE = "overwrite"
    """With other partition columns too, if they are others."""
    REPARTITION = "repartition"
    """The same rows under other partition columns, without a change of data."""
    COLUMN = "add a column"
    FEED = "switch the feed"
    PROPERTY = "set a property"
    UPGRADE = "upgrade the protocol"
    DOWNGRADE = "drop the protocol's features"
    TRANSACTION = "set a transaction's version"
    DOMAIN = "set a domain's metadata"


class Vector(StrEnum):
    """How deleted rows are left out: by writing the file once more, or by a deletion vector that is stored so."""

    COPY = "copy"
    INLINE = "i"
    RELATIVE = "u"
    PREFIXED = "u with a prefix"
    ABSOLUTE = "p"


class Placing(StrEnum):
    """Where data files lie, and how the log spells that."""

    PLAIN = "plain"
    HIVE = "by partition"
    ESCAPED = "escaped"
    ABSOLUTE = "absolute"


class Info(StrEnum):
    FIRST = "first"
    LAST = "last"
    NONE = "none"


class Metrics(StrEnum):
    """What `operationMetrics` say of rows."""

    NONE = "none"
    TRUE = "true"
    ZERO = "no rows"


class CheckpointKind(StrEnum):
    CLASSIC = "classic"
    PARTS = "parts"
    TORN = "parts, one missing"
    V2_JSON = "v2 json"
    V2_PARQUET = "v2 parquet"
    V2_CLASSIC = "v2 classic"


class Pointer(StrEnum):
    """What `_last_checkpoint` says after a checkpoint."""

    RIGHT = "right"
    STALE = "stale"
    MISSING = "missing"
    AHEAD = "ahead"


OPERATIONS = ("WRITE", "MERGE", "DELETE", "UPDATE", "OPTIMIZE", "STREAMING UPDATE")


@dataclass(frozen=True, slots=True)
class Step:
    """`file`, `rows` and `places` mean what the deed makes of them; `places` is a bit mask of a file's rows."""

    deed: Deed = Deed.INSERT
    file: int = 0
    rows: tuple[Numbers, ...] = ()
    places: int = 1
    vector: Vector = Vector.COPY
    data_change: bool = True


@dataclass(frozen=True, slots=True)
class Dress:
    """How a commit is written. `bare`: its removes have no extended metadata. `delta_rs`: that is who wrote it."""

    info: Info = Info.FIRST
    operation: int = 0
    metrics: Metrics = Metrics.NONE
    bare: bool = False
    delta_rs: bool = False
    checksum: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`sidecars`: 0 if file actions are in the checkpoint itself. `cleaned`: older commits are deleted after it."""

    kind: CheckpointKind = CheckpointKind.CLASSIC
    parts: int = 0
    pointer: Pointer = Pointer.RIGHT
    cleaned: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """A commit. `compacted`: so many commits up to it are in a compacted file too. `run`: followers run after it.

    `restart`: they remember nothing of the runs before.
    """

    steps: tuple[Step, ...] = ()
    dress: Dress = field(default_factory=Dress)
    checkpoint: Checkpoint | None = None
    compacted: int = 0
    run: bool = False
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """Version 0. `featured`: it has table features, with deletion vectors and v2 checkpoints among them.

    `stamps`: it has in-commit timestamps. `bounds`: files have full statistics. `marked`: data files have a column
    `_change_type` besides; `repeated`: and the partition columns.
    """

    rows: tuple[Numbers, ...] = ()
    partition: int = 0
    feed: bool = False
    featured: bool = False
    stamps: bool = False
    placing: Placing = Placing.PLAIN
    bounds: bool = False
    marked: bool = False
    repeated: bool = False
    run: bool = True

    @property
    def partitions(self) -> tuple[str, ...]:
        return PARTITIONS[self.partition % len(PARTITIONS)]


class Kind(StrEnum):
    KEYED = "replica"
    ARCHIVE = "replica without a key"
    FEED = "changefeed"
    VIEW = "view"


CONDITIONS = ("", "p = 'x'", "g > 1", "p = 'y' OR p IS NULL", "v <> 'b'", "p = 'x' AND g = 1")

QUERIES = (
    "SELECT g, count(*) AS n, sum(k) AS s FROM t GROUP BY g",
    "SELECT p, count(*) AS n, sum(k) AS s FROM t WHERE p = 'x' GROUP BY p",
    "SELECT k, v, p FROM t WHERE k > 1",
    "SELECT t.k, t.v, u.x FROM t JOIN u ON t.k = u.k",
    "SELECT v, min(k) AS a, max(g) AS b FROM t GROUP BY v",
    "SELECT p, g, count(k) AS n FROM t GROUP BY p, g",
    "SELECT a.k, b.v FROM t a JOIN t b ON a.k = b.k WHERE a.g = 1",
    "SELECT DISTINCT p, v FROM t",
    "SELECT count(*) AS n, sum(k) AS s FROM t",
    "SELECT u.k, u.x, t.v FROM u LEFT JOIN t ON t.k = u.k",
    "SELECT t.p, u.x, count(*) AS n FROM t JOIN u ON t.k = u.k WHERE t.p = 'x' GROUP BY t.p, u.x",
)
"""The views' queries, in words that SQLite has too; `u` stays as it is."""


@dataclass(frozen=True, slots=True)
class Follower:
    """A job. `begins`: the first version at which it runs. `narrow`: it names its columns.

    `ranged`: its first rows are built by ranges. `verify`: it is compared with its source by `job verify`, too;
    `damage`: once more after somebody has added a row to its target.
    """

    kind: Kind = Kind.KEYED
    where: int = 0
    query: int = 0
    by_spark: bool = False
    begins: int = 0
    narrow: bool = False
    ranged: bool = False
    verify: bool = False
    damage: bool = False

    @property
    def condition(self) -> str:
        return CONDITIONS[self.where % len(CONDITIONS)]

    @property
    def sql(self) -> str:
        return QUERIES[self.query % len(QUERIES)]

    def shown(self) -> str:
        of = self.sql if self.kind is Kind.VIEW else self.condition and f"where {self.condition}"
        marks = [
            *["by Spark"] * self.by_spark,
            *[f"from version {self.begins}"] * (self.begins > 0),
            *["of named columns"] * self.narrow,
            *["built by ranges"] * self.ranged,
            *["verified"] * self.verify,
            *["damaged"] * self.damage,
        ]
        return ", ".join([f"{self.kind} {of}".strip(), *marks])


@dataclass(frozen=True, slots=True)
class LogCase:
    """`judged`: Spark is queried though nobody holds rows that the generator has not.

    What makes a case smallest is first: it is made smaller in that order.
    """

    followers: tuple[Follower, ...] = ()
    versions: tuple[Version, ...] = ()
    setup: Setup = field(default_factory=Setup)
    judged: bool = True

    def shown(self) -> str:
        """For people: each version with what it does and what is unusual in how it is written."""
        setup = self.setup
        first = [
            f"0: {[row_of(row, FIRST_COLUMNS)[:FIRST_COLUMNS] for row in setup.rows]}",
            f"partitioned by {setup.partitions}" if setup.partitions else "",
            "with a feed" * setup.feed,
            "with table features" * setup.featured,
            "with in-commit timestamps" * setup.stamps,
            "marked files" * setup.marked,
            "partition columns in files" * setup.repeated,
            f"files {setup.placing}" if setup.placing is not Placing.PLAIN else "",
        ]
        lines = [", ".join(each for each in first if each) + ("; run" if setup.run else "")]
        for number, version in enumerate(self.versions, start=1):
            lines.append(f"{number}: " + "; ".join([*map(_shown, version.steps), *_unusual(version)]))
        return "\n".join([*lines, *(f"- {each.shown()}" for each in self.followers)])


def _shown(step: Step) -> str:
    rows = [row_of(row, FIRST_COLUMNS + 1) for row in step.rows]
    match step.deed:
        case Deed.INSERT:
            return f"insert {rows}"
        case Deed.DELETE | Deed.UPDATE:
            to = f" to {rows}" if step.deed is Deed.UPDATE else ""
            return f"{step.deed} rows {step.places:b} of file {step.file}{to} ({step.vector})"
        case Deed.OVERWRITE | Deed.REPARTITION:
            return f"{step.deed} by {PARTITIONS[step.file % len(PARTITIONS)]} {rows}"
        case _:
            return f"{step.deed} ({step.file})" + ("" if step.data_change else " without a change of data")


def _unusual(version: Version) -> list[str]:
    dress, plain = version.dress, Dress()
    found = [f"commitInfo {dress.info}"] if dress.info is not plain.info else []
    if dress.operation or dress.metrics is not plain.metrics:
        found.append(f"{OPERATIONS[dress.operation % len(OPERATIONS)]} with metrics {dress.metrics}")
    found += ["bare removes"] * dress.bare + ["by delta-rs"] * dress.delta_rs + ["checksum"] * dress.checksum
    if (made := version.checkpoint) is not None:
        cleaned = ", cleaned" if made.cleaned else ""
        found.append(f"checkpoint {made.kind} ({made.parts}), pointer {made.pointer}{cleaned}")
    found += [f"compacted {version.compacted}"] * (version.compacted > 0)
    return found + ["run after a restart" if version.restart else "run"] * version.run
