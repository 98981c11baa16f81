"""One run over a range of source versions, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from iscp.core.build.build_request import BuildRequest
from iscp.core.job.job_row import JobRow
from iscp.core.job.usage import SparkNeed, Usage
from iscp.core.job.verification import VerifyReport
from iscp.core.values.errors import ErrorCode
from iscp.core.values.watermark import SourceMarks, Watermark


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
    `trace` is the context of what led to it (iscp.core.values.trace_context), and `submitted_at_s` when it was queued;
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
