"""The ports to what carries iterations out.

The port to where jobs are written down, and who is given reports of them.

The port to what a node stores of its own log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol

from iscp.model.api.api_requests import LogPage, LogQuery
from iscp.model.job.iteration import HistoryEntry, Iteration, JobOutcome
from iscp.model.job.job_row import JobRow, LogEntry
from iscp.model.job.start_rule import Deaths
from iscp.model.values.progress import StageWork
from iscp.ports.system import Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class HeapSize(NamedTuple):
    """The heap of the engine's JVM, in bytes: what is in use, garbage included, and what may be."""

    used: int
    limit: int


class Engine(Protocol):
    """Spark, as the runner uses it: sessions to borrow, and work that can be cancelled by its label."""

    def session(self) -> AbstractContextManager[SparkSession]:
        """Return a session with SQL settings of its own, given back at the end."""

    def label(self, label: str) -> None:
        """Put what this thread does from now on under `label`."""

    def spent_s(self) -> tuple[float, float]:
        """Return for how many seconds this thread has waited for Spark, and has read and written data itself, in
        all.
        """

    def batches(self, frame: DataFrame, rows_max: int) -> Iterator[pa.Table]:
        """Return the frame's rows, in its order, in tables of 1 to `rows_max` rows; one without rows if there are none.

        Read while they are taken: never more than a partition of Spark's is in memory.
        """

    def stages(self, label: str) -> dict[int, StageWork]:
        """Return what the stages of the Spark jobs under `label` have done, by number, as far as Spark remembers
        them.
        """

    def cancel(self, label: str) -> None:
        """Stop all Spark jobs under `label`, running or still to come; they raise Canceled."""


class DeathBoard(Protocol):
    """The deaths that nodes have seen, by job_ids. Safe for threads."""

    def put(self, own: Mapping[str, Deaths]) -> None:
        """Replace this node's; where that cannot be done now, it is later."""

    def others(self) -> Sequence[Mapping[str, Deaths]]:
        """Return those of each other node, as they were lately."""


class NoBoard:
    """The board of a node that knows of no others (port DeathBoard)."""

    def put(self, own: Mapping[str, Deaths]) -> None:
        """Nobody reads it."""

    def others(self) -> Sequence[Mapping[str, Deaths]]:
        return ()


NO_BOARD = NoBoard()


class JobDeaths(Protocol):
    """The jobs that nodes' processes have died of. Safe for threads; costs what files in memory cost."""

    def at_work(self, rows: Sequence[JobRow]) -> AbstractContextManager[None]:
        """Mark that this thread works for these jobs, of one table; within it may be narrowed to some of them."""

    def of(self, row: JobRow) -> Deaths:
        """Return the job's deaths in a row, at this node and at those of which it is known."""

    def of_account(self, account: str) -> int:
        """Return of how many deaths within a day jobs of the account are suspected."""

    def forget(self, job_id: str) -> None:
        """Forget the job's deaths at this node: it has run well since."""

    def forgive(self, job_id: str, reported_at_s: float) -> None:
        """Forgive the death, as a person has the job tried again, who saw the fault that was reported then."""


class NodeDeaths(JobDeaths, Protocol):
    """The deaths as a node has them."""

    def share(self, board: DeathBoard) -> None:
        """Count with those of other nodes from now on, and have these count with those of this one."""


class NoDeaths:
    """The deaths at a node that stores nothing from one start to the next (port NodeDeaths)."""

    def at_work(self, rows: Sequence[JobRow]) -> AbstractContextManager[None]:
        return nullcontext()

    def of(self, row: JobRow) -> Deaths:
        return Deaths()

    def of_account(self, account: str) -> int:
        return 0

    def forget(self, job_id: str) -> None:
        """There are none."""

    def forgive(self, job_id: str, reported_at_s: float) -> None:
        """There are none."""

    def share(self, board: DeathBoard) -> None:
        """There are none."""


NO_DEATHS = NoDeaths()


class IterationRunner(Protocol):
    """Runs one iteration to its end, on a thread of the executor."""

    def run(self, iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        """Run the iteration, and return one outcome a job; faults of one job are its own. Raises only if the whole
        iteration failed.
        """

    def cancel(self, iteration: Iteration) -> None:
        """Make the Spark work of `iteration` stop; returns at once, `run` ends by itself soon."""


class JobLog(Protocol):
    """The Delta table that holds every job. One writer at a time, by the fence of its term.

    One instance serves one term. Whatever writes raises NotOwner once another term was seen; with it, with StorageError
    and with Unavailable nothing was committed, unless this repeats what was in doubt. OutcomeUnknown: it may have been,
    before the term ended, or may still be, or the storage could not be read.
    Writes come from one thread; history and `tidy` may be called from others.
    """

    @property
    def commits_since_compaction(self) -> int: ...

    @property
    def version(self) -> int:
        """Return the last version of the log that is known; -1 before it is claimed."""

    def claim_term(self) -> int:
        """Mint owner_rev, the last term + 1, by a claim commit; nothing may be read or done before."""

    def load(self) -> list[JobRow]:
        """Return the last row of every registration (`job_id`), oldest first, dropped ones too until they are
        collected.
        """

    def append(self, entries: Sequence[LogEntry]) -> None:
        """Commit at exactly the next version.

        After OutcomeUnknown the next append must carry the same entries: it finds out, and commits them if need be.
        """

    def requests(self) -> Mapping[str, Sequence[str]]:
        """Return the request ids still in the log by the `job_id` that they were about, oldest first; known after
        `load`.
        """

    def compact(self, rows: Sequence[JobRow]) -> None:
        """Replace all entries by the last row of every registration that is still to be known."""

    def tidy(self) -> int:
        """Delete files that the call before found unneeded already; answers how many. Commits nothing to the log."""

    def append_history(self, entries: Sequence[HistoryEntry]) -> None:
        """Append entries. Raises StorageError, and InvalidRequest if one of them cannot be stored: then none was
        written.
        """

    def history(self, job_id: str, limit: int) -> list[HistoryEntry]:
        """Return the history, newest first."""


class NodeLog(Protocol):
    """Safe to use from several threads; never waits."""

    def read(self, query: LogQuery) -> LogPage: ...
