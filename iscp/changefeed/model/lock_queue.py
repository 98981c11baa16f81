"""The lock queue of a changefeed's shard: one attempt of a writer to get the lock, as a state machine; and the ports of
writers, which are the lock queue and the feed's table for a job.

The queue gives only an order of precedence. That writes are right is due to the commit's compare-and-set alone; the
queue keeps the writers of one shard from failing it by turns. The lock's name holds the shard's count of incidents, so
that locks can be burned: a lock whose holder was frozen or lost its power is left to it. Who waits in vain while
nothing moves raises the count, and all go on under the next name. An abandoned holder costs the others one timeout, not
what is left of its lease.

The scheme is after mssql-changefeed ("The locking scheme to avoid long stalls"). Beyond it, each round reads the count
again: otherwise a writer that waits for a burned lock takes the others' commits, under the new name, for a long queue
before itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol, assert_never

from iscp.model.build.build_task import BuildId
from iscp.model.values.state_table import StateTable
from iscp.ports.sink import Manifest, StagedRanges
from iscp.ports.system import Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


SHORT_TRY_S = 0.02
"""How long the first attempt to lock a shard waits; mostly it succeeds, and then nothing has to be sampled."""


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """A writer of a changefeed waits so long for a shard's lock."""

    timeout_s: float = 1.0
    """How long a lock may be held while nothing is committed, in seconds; then its holder counts as gone, which delays
    the others by so much. It has to be much longer than a transaction takes.
    """

    wait_max_s: float = 30.0
    """How long a writer waits in a lock queue that moves; then it begins no further round, and fails with TimedOut."""


@dataclass(frozen=True, slots=True)
class Incidents:
    """A shard has had `count` incidents, as was read at `revision`; (0, 0): none ever."""

    count: int = 0
    revision: int = 0


@dataclass(frozen=True, slots=True)
class IncidentReport:
    """The incidents of a shard: how many, when the last one was found (Unix seconds), and by whom."""

    shard: str
    count: int
    raised_at_s: float
    raised_by: str


# --- what happens ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Began:
    """The attempt begins."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The answer to CountIncidents."""

    incidents: Incidents


@dataclass(frozen=True, slots=True)
class Acquired:
    """The lock that was tried is ours."""


@dataclass(frozen=True, slots=True)
class LockTimedOut:
    """The lock was waited for in vain, and the writer has no place in its queue any more."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The state that the shard's last commit has left; only whether two of them are equal means anything."""

    state: Hashable


QueueEvent = Began | Counted | Acquired | LockTimedOut | Sampled


# --- what is to be done ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CountIncidents:
    """Read the count and give Counted."""


@dataclass(frozen=True, slots=True)
class TryLock:
    """Wait for the lock of this count for so long at most; give Acquired or TimedOut."""

    incidents: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class SampleState:
    """Read the shard's state and give Sampled."""


@dataclass(frozen=True, slots=True)
class RaiseIncidents:
    """Raise the count by one, unless it has been raised since it was `seen`."""

    seen: Incidents


@dataclass(frozen=True, slots=True)
class CheckConnection:
    """Check whether this process is cut off: then it sees nothing move either."""


@dataclass(frozen=True, slots=True)
class Proceed:
    """The writer's turn has come. The attempt is over."""


class GiveUpReason(Enum):
    INCIDENT = auto()
    LONG_LINE = auto()


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The attempt is over, without a lock. Another one may begin at once."""

    reason: GiveUpReason
    waited_s: float


QueueEffect = CountIncidents | TryLock | SampleState | RaiseIncidents | CheckConnection | Proceed | GiveUp


# state diagram of LOCK_PHASES
#
#   new               ── begin ───────────────────────────▶  counting
#   counting          ── incidents counted ───────────────▶  trying
#   counting again    ── incidents counted ───────────────▶  waiting
#   trying | waiting  ── lock acquired ───────────────────▶  over
#   trying            ── waited in vain ──────────────────▶  sampling
#   waiting           ── waited in vain ──────────────────▶  sampling again
#   sampling          ── state sampled ───────────────────▶  waiting
#   sampling again    ── sample unchanged ────────────────▶  over
#   sampling again    ── sample changed ──────────────────▶  counting again
#   sampling again    ── sample changed, waited too long ─▶  over


class LockPhase(Enum):
    NEW = "new"
    COUNTING = "counting"
    TRYING = "trying"
    SAMPLING = "sampling"
    WAITING = "waiting"
    SAMPLING_AGAIN = "sampling again"
    COUNTING_AGAIN = "counting again"
    OVER = "over"


class LockEvent(Enum):
    """The answers that move an attempt on, and, for a second sample, what it shows."""

    BEGIN = "begin"
    COUNTED = "incidents counted"
    ACQUIRED = "lock acquired"
    TIMED_OUT = "waited in vain"
    SAMPLED = "state sampled"
    UNMOVED = "sample unchanged"
    MOVED = "sample changed"
    TOO_LONG = "sample changed, waited too long"


LOCK_PHASES: StateTable[LockPhase, LockEvent] = StateTable(
    {
        LockEvent.BEGIN: {LockPhase.NEW: LockPhase.COUNTING},
        LockEvent.COUNTED: {LockPhase.COUNTING: LockPhase.TRYING, LockPhase.COUNTING_AGAIN: LockPhase.WAITING},
        LockEvent.ACQUIRED: {LockPhase.TRYING: LockPhase.OVER, LockPhase.WAITING: LockPhase.OVER},
        LockEvent.TIMED_OUT: {LockPhase.TRYING: LockPhase.SAMPLING, LockPhase.WAITING: LockPhase.SAMPLING_AGAIN},
        LockEvent.SAMPLED: {LockPhase.SAMPLING: LockPhase.WAITING},
        LockEvent.UNMOVED: {LockPhase.SAMPLING_AGAIN: LockPhase.OVER},
        LockEvent.MOVED: {LockPhase.SAMPLING_AGAIN: LockPhase.COUNTING_AGAIN},
        LockEvent.TOO_LONG: {LockPhase.SAMPLING_AGAIN: LockPhase.OVER},
    }
)


@dataclass(slots=True)
class Waiting:
    """Begin it with Began, then give it the answer to each effect that has one; times must not step back.

    The machine ends in Proceed or GiveUp. Invariant: RaiseIncidents only after a whole `timeout_s` between two equal
    samples.
    """

    limits: QueueLimits
    phase: LockPhase = LockPhase.NEW
    began_s: float = 0.0
    seen: Incidents = Incidents()
    sample: Hashable = None

    def step(self, event: QueueEvent, now_s: float) -> list[QueueEffect]:
        """Take one event in, and return the effects. Raises InvariantBroken where the event answers no effect that is
        pending.
        """
        match event:
            case Began():
                self._take(LockEvent.BEGIN)
                self.began_s = now_s
                return [CountIncidents()]
            case Counted(incidents):
                self._take(LockEvent.COUNTED)
                self.seen = incidents
                return [self._try_lock()]
            case Acquired():
                self._take(LockEvent.ACQUIRED)
                return [Proceed()]
            case LockTimedOut():
                self._take(LockEvent.TIMED_OUT)
                return [SampleState()]
            case Sampled(state) if self.phase is LockPhase.SAMPLING_AGAIN:
                return self._compare(state, now_s - self.began_s)
            case Sampled(state):
                self._take(LockEvent.SAMPLED)
                self.sample = state
                return [self._try_lock()]
            case _:
                assert_never(event)

    def _compare(self, state: Hashable, waited_s: float) -> list[QueueEffect]:
        if state == self.sample:
            self._take(LockEvent.UNMOVED)
            return [RaiseIncidents(self.seen), CheckConnection(), GiveUp(GiveUpReason.INCIDENT, waited_s)]
        if waited_s >= self.limits.wait_max_s:
            self._take(LockEvent.TOO_LONG)
            return [GiveUp(GiveUpReason.LONG_LINE, waited_s)]
        self._take(LockEvent.MOVED)
        self.sample = state
        return [CountIncidents()]

    def _try_lock(self) -> TryLock:
        # Never less than the timeout, also where that exceeds what is left: a shorter wait in vain shows nothing.
        wait_s = SHORT_TRY_S if self.phase is LockPhase.TRYING else self.limits.timeout_s
        return TryLock(self.seen.count, wait_s)

    def _take(self, event: LockEvent) -> None:
        self.phase = LOCK_PHASES.after(self.phase, event, "the attempt to get the lock")


# --- ports ------------------------------------------------------------------------------------------------------------
# The lock queue consists of locks, and the count of incidents in their names.


class HeldLock(Protocol):
    """The first place in a lock queue. It stops nobody from writing: that is up to the commit."""

    @property
    def held(self) -> bool:
        """Return whether, as far as is known here, nobody else can hold it; makes no request."""

    def release(self) -> None:
        """Let the next one go; may be called again, and never raises: what cannot be deleted ends with its lease."""


class FeedLocks(Protocol):
    """The lines of one writer process. Raises Unavailable, OutcomeUnknown; InvalidRequest for a name that is none."""

    def try_lock(self, feed: str, shard: str, incidents: int, wait_s: float) -> HeldLock | None:
        """Queue for the lock of this count, for `wait_s` at most; None: in vain, and out of the queue again."""

    def incidents(self, feed: str, shard: str) -> Incidents: ...

    def raise_incidents(self, feed: str, shard: str, seen: Incidents) -> Incidents:
        """Raise the count by one unless it is another than `seen`; what it is now, if another raised it too."""

    def list_incidents(self, feed: str) -> tuple[IncidentReport, ...]:
        """Return the incidents of every shard of the feed that has had any, by shard."""

    def check(self) -> None:
        """Return if the connection is alive."""


class FeedCommit(Protocol):
    """One commit to a job's range of a feed, while it is made. The WatermarkTxn of that commit is this object too."""

    @property
    def row(self) -> pa.Schema:
        """Return the columns that a feed's rows have, in order."""

    @property
    def shards(self) -> int:
        """Return the number of shards of the whole feed; a power of two."""

    def add(self, shard: int, rows: pa.Table, operations: pa.Array, versions: pa.Array, net: bool) -> None:
        """Add rows behind those that were added before; `rows` have just the columns of `row`."""

    def difference(self, present: DataFrame, where: str, more: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the changes after which a replay of the feed's rows for which `where` is true gives the rows `present`.

        The changes are in order of the key, with `_change_type` and the SQL expressions `more`; rows count as often as
        they are there. Raises PermanentError where the feed cannot be replayed, since a part of it is gone.
        """

    @property
    def touched(self) -> bool:
        """Return whether the range's shards had commits before this one."""

    def insert_all(self, rows: DataFrame, key_hash: str, version: int, guard: Guard) -> int:
        """Add all rows as inserts of the source's `version`, in order of the key, as `difference` would; how many.

        `key_hash`: the column that says which shard a row belongs to. Raises InvalidRequest where one does not fit.
        """

    def get(self, key: str) -> str | None: ...
    def put(self, key: str, value: str) -> None: ...

    def commit(self) -> None:
        """Commit all at once, if nobody else has written to the range's shards since, and all that `get` returned is
        still so.

        Raises Conflict.
        """


class FeedSink(Protocol):
    """The table of a feed that a job keeps. One consumer at work has one."""

    def records(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Return the texts that commits have put under these keys; there are none where there is no table."""

    def open(self, row: pa.Schema, key: Sequence[str], shards: int) -> None:
        """Make the table where it is not there, as `begin` does."""

    def is_untouched(self, range_id: int) -> bool:
        """Return whether the range's shards never had a commit."""

    def ranges(self, build: BuildId) -> StagedRanges:
        """Return the staged ranges of one build, whose rows go with it."""

    def staged_rows(self, session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
        """Return the staged rows of manifests, of at least one."""

    def begin(
        self, row: pa.Schema, key: Sequence[str], shards: int, range_id: int
    ) -> AbstractContextManager[FeedCommit]:
        """Begin a commit for rows of such columns; the table is made where it is not there, and given new columns.

        `shards`: how many a new one is to have. A commit that is not finished leaves nothing behind. Raises
        PermanentError where a column has another type.
        """

    def tidy(self) -> None:
        """Delete files that nothing names, as Consumer has it."""
