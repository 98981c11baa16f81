"""Iterations: each is one run over a range of a source's versions for jobs of its table. The module has the order to
run one and its outcome, its cost, the figures of a job's maintenance, and the checks of reports that come from
elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from iscp.model.build.build_task import BuildRequest
from iscp.model.job.job_row import JobReport, JobRow, JobState, Reason, exact_status
from iscp.model.job.start_rule import VerifyReport
from iscp.model.rows.key_ranges import RANGES_MAX, WHOLE
from iscp.model.values.errors import ErrorCode
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.untrusted_values import (
    AT_S_LEAST,
    AT_S_MOST,
    COUNT_MOST,
    Check,
    exact_code,
    exact_fields,
    exact_float,
    exact_int,
    exact_message,
    exact_name,
    exact_version,
    shown,
)
from iscp.model.values.watermark import (
    ColumnIds,
    DeadLetters,
    Position,
    SourceMarks,
    Watermark,
    exact_sources,
    exact_totals,
    exact_watermark,
)

# --- cost -------------------------------------------------------------------------------------------------------------
# The cost of one job's part in one iteration: the time of its parts, what it read and wrote, what stood in its way.

SECONDS_MOST = 366 * 86_400.0
"""The longest time that a part of an iteration may take in a report (seconds); a report of more is refused."""


FIGURE_PREFIX = "usage."
"""The prefix of a usage's figures where they stand among the seconds of an iteration's parts."""


class UsagePart(StrEnum):
    """A part of an iteration; `Usage` has the seconds of each under this name and `_s`."""

    WAIT = "wait"
    READ = "read"
    COMPUTE = "compute"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of one job's part in one iteration; a count is 0 where there was nothing, or nobody has counted it.

    `wait_s`: seconds from when the iteration was due, or its source's change was notified, until it began, and those
    within it in which the iteration's other jobs worked, and this one did not. The others are disjoint spans of the
    job's own work, from its beginning to its commit, or to its failure, in all attempts.
    `read_s`: until logs, changes and rows of its tables, and the position of its target, were read; a read that several
    jobs share counts for each. `commit_s`: in the target's transaction, which writes the rows' files and the commit;
    what Spark reads and computes only when the transaction requests the rows is in it. `compute_s`: all else, which is
    the kind's own work, and the writing of rows that are staged before the transaction.

    `rows_read` and `bytes_read`: rows, and bytes of the files, of the changes or snapshots of its tables.
    `rows_written`: rows put, changed or taken out. `bytes_written`: bytes of the files that its commit has
    added, and of those that were added to the state beside a view.
    `retries`: failures in a row before this iteration. `conflicts`: how often another writer won its `seq` in it.
    """

    wait_s: float = 0.0
    read_s: float = 0.0
    compute_s: float = 0.0
    commit_s: float = 0.0
    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    retries: int = 0
    conflicts: int = 0

    @property
    def work_s(self) -> float:
        """Return for how long the job's part ran, in seconds; it did not wait then."""
        return self.read_s + self.compute_s + self.commit_s

    def seconds(self) -> dict[UsagePart, float]:
        """Return the seconds of each part, in the order in which they begin."""
        return {
            UsagePart.WAIT: self.wait_s,
            UsagePart.READ: self.read_s,
            UsagePart.COMPUTE: self.compute_s,
            UsagePart.COMMIT: self.commit_s,
        }


def _exact_seconds(value: object, name: str) -> float:
    return exact_float(value, name, 0.0, SECONDS_MOST)


_USAGE: Mapping[str, Check] = {
    "wait_s": _exact_seconds,
    "read_s": _exact_seconds,
    "compute_s": _exact_seconds,
    "commit_s": _exact_seconds,
    "rows_read": exact_int,
    "rows_written": exact_int,
    "bytes_read": exact_int,
    "bytes_written": exact_int,
    "retries": exact_int,
    "conflicts": exact_int,
}
_exact_values = exact_fields(Usage, _USAGE)


def exact_usage(value: object, name: str = "usage") -> Usage | None:
    """Return a usage that may be stored, or None where there is none. Raises ValueError."""
    if value is None:
        return None
    if not isinstance(value, Usage):
        raise ValueError(f"{name} is no Usage")
    return _exact_values(value)


def figures_of(usage: Usage | None) -> dict[str, float]:
    """Return the figures of a usage by their names with FIGURE_PREFIX: those that are not 0, and always `wait_s`."""
    given = {} if usage is None else asdict(usage)
    return {f"{FIGURE_PREFIX}{name}": value for name, value in given.items() if value or name == "wait_s"}


def split_figures(figures: Mapping[str, Any]) -> tuple[dict[str, Any], Usage | None]:
    """Return figures without those that `figures_of` has made, and the usage that these are of.

    There is no usage where there are none, or where they cannot be of one. Those that only a later release knows are
    left out.
    """
    others = {name: value for name, value in figures.items() if not name.startswith(FIGURE_PREFIX)}
    if len(others) == len(figures):
        return others, None
    given = {name: figures[f"{FIGURE_PREFIX}{name}"] for name in _USAGE if f"{FIGURE_PREFIX}{name}" in figures}
    try:
        return others, exact_usage(Usage(**given))
    except ValueError:
        return others, None


# --- the need of Spark ------------------------------------------------------------------------------------------------
# Why a job needed Spark, where Spark starts only when something needs it.

REASONS_MAX = 4
"""Reasons that are kept of one job's work; further ones are left out, as the first of them made it wait."""

UNNAMED = "a read or a write by Spark"
"""The reason where nobody has said a better one."""


@dataclass(frozen=True, slots=True)
class SparkNeed:
    """A job's work needed Spark for these `reasons`, in the order in which they came up, each once.

    They are empty where Spark was used, and nobody has said what for. `started`: this work found no Spark, and started
    it.
    """

    reasons: tuple[str, ...] = ()
    started: bool = False

    def and_for(self, reason: str) -> SparkNeed:
        """Return the need with one more reason; an empty one adds nothing."""
        if not reason or reason in self.reasons or len(self.reasons) >= REASONS_MAX:
            return self
        return replace(self, reasons=(*self.reasons, reason))

    def __str__(self) -> str:
        return "; ".join(self.reasons) or UNNAMED


def joined_needs(first: SparkNeed | None, second: SparkNeed | None) -> SparkNeed | None:
    """Return the need of two parts of one job's work, of which either may have needed no Spark."""
    if first is None or second is None:
        return first or second
    for reason in second.reasons:
        first = first.and_for(reason)
    return replace(first, started=first.started or second.started)


# --- figures of maintenance -------------------------------------------------------------------------------------------
# The figures of a job's refreshes, and of the purges of its table, on the node that runs the job.


@dataclass(frozen=True, slots=True)
class MaintenanceFigures:
    """The figures of refreshes or purges; `running` and `waiting` are as of now, the other counts since the node took
    the job up.

    `hanging` is set while one runs that was given up as it took too long. With `quarantined` it keeps failing, or has
    failed for good, and is tried rarely. `error_code` and `error_msg` are the last one's, OK and empty after a success.
    `next_at_s` is Unix time, 0 while it runs or waits for a slot.
    """

    submitted: int = 0
    running: int = 0
    waiting: int = 0
    completed: int = 0
    failed: int = 0
    timeout: int = 0
    rejected: int = 0
    hanging: bool = False
    quarantined: bool = False
    error_code: int = ErrorCode.OK
    error_msg: str = ""
    next_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobMaintenance:
    """The figures of a job's maintenance, each None if its consumer offers no such thing, or if no node could be
    reached.
    """

    refresh: MaintenanceFigures | None = None
    purge: MaintenanceFigures | None = None


NO_MAINTENANCE = JobMaintenance()


def summed(of_ranges: Sequence[MaintenanceFigures]) -> MaintenanceFigures | None:
    """Return the figures of a job on a split table: the counts of all its ranges, and the fault of one that has any."""
    if not of_ranges:
        return None
    worst = max(of_ranges, key=lambda each: (each.quarantined, each.hanging, each.error_code != ErrorCode.OK))
    counts = {name: sum(getattr(each, name) for each in of_ranges) for name in _COUNTS}
    next_times = [each.next_at_s for each in of_ranges if each.next_at_s]
    return replace(worst, **counts, next_at_s=min(next_times, default=0.0))


_COUNTS = ("submitted", "running", "waiting", "completed", "failed", "timeout", "rejected")


# --- iterations and their outcomes ------------------------------------------------------------------------------------


class DataType(StrEnum):
    """The kind of data that a consumer is handed.

    SNAPSHOT: all rows at `to_version`, to replace whatever the sink has. TAIL: the net changes of (`from_version`,
    `to_version`]. DIFFERENCE: all rows at `to_version`, to be compared with what the sink has, and only the difference
    applied.
    """

    SNAPSHOT = "snapshot"
    TAIL = "tail"
    DIFFERENCE = "difference"


class Purpose(StrEnum):
    """APPLY changes, VERIFY the target of the one job against its source, or REPAIR it, which also makes it equal, or
    DELETE it.
    """

    APPLY = "apply"
    VERIFY = "verify"
    REPAIR = "repair"
    DELETE = "delete"


class ChangeDetail(StrEnum):
    """The detail that a consumer wants to see: one final change for each key (NET), or every change in order (ALL)."""

    NET = "net"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one iteration takes; the rest follows in the next one.

    A larger commit is cut into steps by the keys of its rows.
    """

    rows_max: int = 5_000_000
    bytes_max: int = 2 * 1024**3
    versions_max: int = 1_000


@dataclass(frozen=True, slots=True)
class Iteration:
    """Work for the runner: bring `jobs` of one table to `to_version` (None: the newest), or what `purpose` says.

    Jobs that read further tables themselves go no further than to the version of each that `ends` has by its URI.
    Invariant: all jobs are of the table `table_id` at `table_uri`. `number` identifies an iteration of a node. `epoch`:
    the node's life under which it may write; not under a later one, for by then another node may have the shard.
    `trace` is the context of what led to it (iscp.model.values.ids), and `submitted_at_s` when it was queued;
    only where traces are recorded.
    """

    number: int
    table_id: str
    table_uri: str
    jobs: tuple[JobRow, ...]
    to_version: int | None = None
    priority: int = 0
    deadline_s: float = 0.0
    purpose: Purpose = Purpose.APPLY
    epoch: int = 0
    trace: str = ""
    submitted_at_s: float = 0.0
    ends: Mapping[str, int] = field(default_factory=dict)

    @property
    def account(self) -> str:
        return self.jobs[0].key.account

    @property
    def label(self) -> str:
        return f"iscp-{self.table_id}-{self.number}"


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """The outcome of an iteration for one job; on an error `watermark` and `seq` are the sink's last known.

    With `committed` it wrote to the sink. `seq` may move without it: by a commit whose node died before it was
    reported, or has yet to report it. `dead_letters` counts rows that the target leaves out. `source_id` is the table
    that the target follows, empty where that was not seen. `warning` is what the job's user should know, though nothing
    is wrong. `verified` is what a comparison found, if that was the purpose. `sources` says for a job of several tables
    how far each was read; it is empty where that was not seen. `strategy` and `strategy_reason` say how a query's rows
    were brought up to date, and why so; `rows_in` and `parts_s` are those of HistoryEntry, `due_at_s` that of
    Refreshed, and so are `waits_for` and `wait_s`. With `build` the job waits for a build by ranges, and has applied
    nothing yet. `usage` is what the node has measured of its work: the schedule adds for how long it has waited, and
    what it has waited for. With `committed`, `target_version` is the sink's own version that has it; -1: it is not
    known. `spark` says why it needed Spark, where that starts when something needs it; None: it did not.
    """

    row: JobRow
    watermark: Watermark
    seq: int
    error_code: int = ErrorCode.OK
    error_msg: str = ""
    rows: int = 0
    bytes: int = 0
    data_type: DataType = DataType.TAIL
    from_version: int = -1
    verified: VerifyReport | None = None
    dead_letters: int = 0
    warning: str = ""
    source_id: str = ""
    committed: bool = False
    sources: SourceMarks = field(default_factory=dict)
    strategy: str = ""
    strategy_reason: str = ""
    rows_in: int = 0
    parts_s: Mapping[str, float] = field(default_factory=dict)
    due_at_s: float = 0.0
    waits_for: str = ""
    wait_s: float = 0.0
    build: BuildRequest | None = None
    usage: Usage | None = None
    target_version: int = -1
    spark: SparkNeed | None = None

    @property
    def ok(self) -> bool:
        return self.error_code == ErrorCode.OK


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One row of `iscp_history`: one job's part in one iteration.

    `data_type` is the strategy where a query's rows were brought up to date. `reason` says why it was taken, or why all
    rows were compared or replaced where changes would have done. `rows_in`: rows that were read for a query, changed
    ones or all (0: it is not known); `rows` are those written, and `bytes` those of the files with them. `parts_s`: how
    long the parts of a query's refresh took (seconds), by their names. `usage` is None of a node, or in a table, of a
    release that does not measure it.
    """

    account: str
    table_id: str
    job_name: str
    job_id: str
    seq: int
    from_version: int
    to_version: int
    start_at_s: float
    end_at_s: float
    source_commit_at_s: float
    error_code: int
    error_msg: str
    rows: int
    bytes: int
    data_type: str
    node_id: str
    reason: str = ""
    rows_in: int = 0
    parts_s: Mapping[str, float] = field(default_factory=dict)
    usage: Usage | None = None


# --- checks of reports ------------------------------------------------------------------------------------------------
# Positions, reports and history are checked field by field: the result may be stored, or ValueError is raised. A sink's
# position comes from a consumer's own code, a report from another node. Either may have anything of any type in it.
# Messages are made fit to be stored (`untrusted_values`); a number or a name that is wrong is refused, and with it all
# that it belongs to.

PARTS_MAX = 32
"""Parts of an iteration whose times are stored; a report of more is refused."""


def exact_parts(value: object, name: str) -> dict[str, float]:
    """Return seconds by the names of an iteration's parts. Raises ValueError."""
    if not isinstance(value, Mapping) or len(value) > PARTS_MAX:
        raise ValueError(f"{name} is {shown(value)}, which is not the seconds of at most {PARTS_MAX} parts")
    return {exact_name(part, name): exact_float(took_s, name, 0.0) for part, took_s in value.items()}


_HISTORY: Mapping[str, Check] = {
    "account": exact_name,
    "table_id": exact_name,
    "job_name": exact_name,
    "job_id": exact_name,
    "seq": exact_int,
    "from_version": exact_version,
    "to_version": exact_version,
    "start_at_s": exact_float,
    "end_at_s": exact_float,
    "source_commit_at_s": exact_float,
    "error_code": exact_code,
    "error_msg": exact_message,
    "rows": exact_int,
    "bytes": exact_int,
    "data_type": exact_name,
    "node_id": exact_name,
    "reason": exact_message,
    "rows_in": exact_int,
    "parts_s": exact_parts,
    "usage": exact_usage,
}

exact_entry = exact_fields(HistoryEntry, _HISTORY)


def exact_range(value: object, name: str = "range_id") -> int:
    return exact_int(value, name, WHOLE, 2 * RANGES_MAX - 1)


def exact_shard(shard: ShardId) -> ShardId:
    if not shard.table_id:
        raise ValueError("table_id is empty")
    return ShardId(exact_name(shard.table_id, "table_id"), exact_range(shard.range_id))


def exact_position(found: object) -> Position:
    """Return the position that a sink reports. Raises ValueError."""
    if not isinstance(found, Position):
        raise ValueError(f"it is {shown(found)}, which is no Position")
    if not isinstance(found.dead, DeadLetters):
        raise ValueError(f"dead is {shown(found.dead)}, which is no DeadLetters")
    return Position(
        exact_int(found.seq, "seq"),
        exact_watermark(found.watermark),
        exact_name(found.job_id, "job_id"),
        exact_name(found.source_id, "source_id"),
        exact_message(found.void, "void"),
        exact_int(found.base_version, "base_version", -1),
        DeadLetters(exact_int(found.dead.seq, "dead.seq", -1), exact_int(found.dead.rows, "dead.rows")),
        _exact_columns(found.column_ids),
        exact_sources(found.sources),
        exact_float(found.as_of_s, "as_of_s"),
        exact_totals(found.totals),
    )


def _exact_columns(found: object) -> ColumnIds | None:
    if found is None:
        return None
    if not isinstance(found, Mapping) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise ValueError(f"column_ids is {shown(found)}, which does not map names to texts")
    return dict(found)


def exact_report(report: JobReport) -> JobReport:
    key = report.key
    texts = (key.account, key.table_id, key.job_name)
    account, table_id, job_name = map(exact_name, texts, ("account", "table_id", "job_name"))
    if report.state is not None and not isinstance(report.state, JobState):
        raise ValueError(f"state is {shown(report.state)}, which is none of a job")
    if report.reason is not None and not isinstance(report.reason, Reason):
        raise ValueError(f"reason is {shown(report.reason)}, which is none")
    return replace(
        report,
        key=JobKey(account, table_id, job_name, exact_range(key.range_id)),
        job_id=exact_name(report.job_id, "job_id"),
        watermark=exact_watermark(report.watermark),
        seq=exact_int(report.seq, "seq"),
        status=exact_status(report.status) if report.status is not None else None,
    )


def refuse_absurd_row(row: JobRow) -> None:
    """Raise ValueError for a row that no job can have; quick, as a node is handed a hundred thousand at a time."""
    mark, key = row.watermark, row.key
    if not (
        -1 <= mark.version <= COUNT_MOST
        and 0 <= mark.step <= mark.steps <= COUNT_MOST
        and 0 <= row.seq <= COUNT_MOST
        and AT_S_LEAST <= mark.at_s <= AT_S_MOST
        and AT_S_LEAST <= row.create_at_s <= AT_S_MOST
        and (row.drop_at_s is None or AT_S_LEAST <= row.drop_at_s <= AT_S_MOST)
        and WHOLE <= key.range_id < 2 * RANGES_MAX
        and key.table_id
        and row.job_id
    ):
        numbers = {"range_id": key.range_id, "seq": row.seq, "watermark": mark, "create_at_s": row.create_at_s}
        raise ValueError(f"no job can have {shown(numbers)}, dropped at {row.drop_at_s}, as {shown(row.job_id)}")
