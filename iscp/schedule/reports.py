"""The reports of a node to the owner: checkpoints of what became of its jobs, when they are sent, the node's latest
Sync, and the states of a job that are reported.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobReport, JobState
from iscp.model.protocol.events import CoordinationTimes
from iscp.model.protocol.messages import CHECKPOINT_BYTES_MAX, SYNC_SHARDS_MAX, ShardCheckpoint, SourceSeen, Sync
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.state_table import StateTable

# --- the outbox -------------------------------------------------------------------------------------------------------
# Reports are gathered, cut into numbered checkpoints, and stored until recorded. Within an owner's term each report is
# recorded once, in order: checkpoints are numbered, the owner takes only the next number, and the node repeats what is
# not recorded. Across owners a checkpoint whose acknowledgement was lost with the old owner is sent to the new one as
# well, with the same content: history entries may then come twice (they are equal in job_id, seq and start time),
# statuses are idempotent. Nothing is ever dropped.

IN_FLIGHT_MAX = 64
"""Checkpoints sent and not yet recorded, more than are cut while the history is written once; further reports wait at
the node.
"""

HISTORY_MAX = 50_000
"""History entries that wait for the owner; above it no new iterations start at the node."""

ITEM_BYTES = 300
"""Estimated bytes of a report, history entry or shard besides its texts."""


def _report_bytes(report: JobReport) -> int:
    return ITEM_BYTES + (len(report.status.error_msg) if report.status else 0)


def merge_reports(older: JobReport | None, newer: JobReport) -> JobReport:
    """Return one report that says what both say, in this order. A state that is repeated has the status that it had."""
    if older is None or older.job_id != newer.job_id or newer.state not in (None, older.state):
        return newer
    if newer.state is not None:
        return newer if newer.status else replace(newer, status=older.status)
    return replace(newer, state=older.state, reason=newer.reason or older.reason, status=newer.status or older.status)


@dataclass(slots=True)
class _Gathered:
    reports: OrderedDict[JobKey, JobReport] = field(default_factory=OrderedDict)
    history: deque[HistoryEntry] = field(default_factory=deque)
    seen: SourceSeen | None = None
    seen_s: float = 0.0

    @property
    def empty(self) -> bool:
        return not self.reports and not self.history and self.seen is None

    def take(self, shard: ShardId, budget: int) -> tuple[ShardCheckpoint, int]:
        """Take out what fits into `budget` bytes, at least one item, and what it cost; history goes first."""
        spent = ITEM_BYTES
        history: list[HistoryEntry] = []
        while self.history and (not history or spent < budget):
            history.append(self.history.popleft())
            spent += ITEM_BYTES + len(history[-1].error_msg)
        reports: list[JobReport] = []
        while self.reports and not self.history and (not (history or reports) or spent < budget):
            reports.append(self.reports.popitem(last=False)[1])
            spent += _report_bytes(reports[-1])
        seen, self.seen = self.seen, None
        return ShardCheckpoint(shard, tuple(reports), tuple(history), seen), spent


@dataclass(frozen=True, slots=True)
class Chunk:
    """A checkpoint's content; never changes once it is numbered.

    `seen_s`: when each shard's source was reported, by the machine's clock.
    """

    number: int
    shards: tuple[ShardCheckpoint, ...]
    seen_s: tuple[float, ...]

    def as_sent(self, now_s: float) -> tuple[ShardCheckpoint, ...]:
        """Return the content as it is sent at `now_s`: what was seen of sources is older by as long as it waited here,
        which an owner whose clock is another cannot know.
        """
        pairs = zip(self.shards, self.seen_s, strict=True)
        return tuple([replace(item, seen=item.seen.later(now_s - at_s)) if item.seen else item for item, at_s in pairs])


class Outbox:
    """Invariants: `chunks` are numbered recorded + 1, recorded + 2, …; at most IN_FLIGHT_MAX."""

    def __init__(self) -> None:
        self.recorded = 0
        self.chunks: deque[Chunk] = deque()
        self.history_waiting = 0
        self._gathered: OrderedDict[ShardId, _Gathered] = OrderedDict()
        self._in_chunks: Counter[ShardId] = Counter()

    @property
    def gathered(self) -> bool:
        return bool(self._gathered)

    def gather(self, shard: ShardId, reports: Sequence[JobReport], history: Sequence[HistoryEntry]) -> None:
        """Keep `reports` (the newest of each job counts) and all of `history`."""
        if not reports and not history:
            return
        gathered = self._gathered.setdefault(shard, _Gathered())
        for report in reports:
            gathered.reports[report.key] = merge_reports(gathered.reports.get(report.key), report)
        gathered.history.extend(history)
        self.history_waiting += len(history)

    def see(self, seen: SourceSeen, now_s: float) -> None:
        gathered = self._gathered.setdefault(seen.shard, _Gathered())
        gathered.seen, gathered.seen_s = seen, now_s

    def cut(self) -> Chunk | None:
        """Number the next checkpoint; None where there is nothing to say or too much is on its way."""
        if not self._gathered or len(self.chunks) >= IN_FLIGHT_MAX:
            return None
        budget = CHECKPOINT_BYTES_MAX
        shards: list[ShardCheckpoint] = []
        seen_s: list[float] = []
        while self._gathered and budget > 0:
            shard = next(iter(self._gathered))
            gathered = self._gathered[shard]
            taken, spent = gathered.take(shard, budget)
            budget -= spent
            shards.append(taken)
            seen_s.append(gathered.seen_s)
            self._in_chunks[shard] += 1
            if gathered.empty:
                del self._gathered[shard]
        chunk = Chunk(self.recorded + len(self.chunks) + 1, tuple(shards), tuple(seen_s))
        self.chunks.append(chunk)
        return chunk

    def record(self, number: int) -> bool:
        """Note that all up to `number` is recorded, and return whether that was news."""
        before = self.recorded
        while self.chunks and self.chunks[0].number <= number:
            for item in self.chunks.popleft().shards:
                self.history_waiting -= len(item.history)
                self._in_chunks[item.shard] -= 1
                if not self._in_chunks[item.shard]:
                    del self._in_chunks[item.shard]
            self.recorded += 1
        return self.recorded > before

    def flushed(self, shard: ShardId) -> bool:
        """Return whether everything that was gathered of `shard` is recorded."""
        return shard not in self._gathered and shard not in self._in_chunks

    def renumber(self) -> None:
        """Begin a new epoch: what is not recorded is sent again, numbered from 1."""
        self.recorded = 0
        self.chunks = deque(replace(chunk, number=n) for n, chunk in enumerate(self.chunks, start=1))


# --- the latest Sync --------------------------------------------------------------------------------------------------
# The Sync is sent again ever more rarely until the owner has acknowledged it.


class SyncRepeater:
    """The repeater has the `parts` of the Sync that is not acknowledged yet, if there is one; they are sent again at
    `due_s`.
    """

    def __init__(self, timeouts: CoordinationTimes) -> None:
        self.parts: tuple[Sync, ...] = ()
        self.due_s = 0.0
        self.number = 0
        self._timeouts = timeouts
        self._acknowledged = 0
        self._wait_s = 0.0

    @property
    def acknowledged(self) -> bool:
        """Return whether the owner has the latest; False before the first."""
        return 0 < self.number == self._acknowledged

    def renew(self) -> int:
        """Begin a Sync, as the former no longer applies, and return its number."""
        self.number += 1
        self.parts = ()
        return self.number

    def begin(self, whole: Sync, now_s: float, *, requested: bool) -> None:
        """Send it in parts, again and again. An owner that `requested` it repeats its request: the pause is longer."""
        cuts = range(0, max(1, len(whole.shards)), SYNC_SHARDS_MAX)
        self.parts = tuple(
            replace(whole, part=part, parts=len(cuts), shards=whole.shards[cut : cut + SYNC_SHARDS_MAX])
            for part, cut in enumerate(cuts)
        )
        self.due_s = now_s
        self._wait_s = 2 * self._timeouts.resend_s if requested else self._timeouts.resend_s

    def acknowledge(self, number: int) -> bool:
        """Note that the owner has the Sync of this number, and return whether it was the latest, and was being
        repeated.
        """
        if number != self.number:
            return False
        repeated, self.parts = bool(self.parts), ()
        self._acknowledged = number
        return repeated

    def take_due(self, now_s: float) -> tuple[Sync, ...]:
        """Return what is to be sent now."""
        if not self.parts or now_s < self.due_s:
            return ()
        self.due_s = now_s + self._wait_s
        self._wait_s = self._timeouts.next_resend_s(self._wait_s)
        return self.parts


# --- the pace of checkpoints ------------------------------------------------------------------------------------------
# New checkpoints are sent at a fixed pace, unrecorded ones ever more rarely.


class CheckpointPace:
    """Times are of the machine's clock."""

    def __init__(self, timeouts: CoordinationTimes) -> None:
        self._timeouts = timeouts
        self._cut_due_s = 0.0
        self._repeat_due_s = 0.0
        self._repeat_wait_s = timeouts.resend_s

    def due_times_s(self, outbox: Outbox) -> Iterator[float]:
        """Yield when something is to be sent, if nothing happens before."""
        if outbox.gathered and len(outbox.chunks) < IN_FLIGHT_MAX:
            yield self._cut_due_s
        if outbox.chunks:
            yield self._repeat_due_s

    def hasten(self, now_s: float) -> None:
        """Have the next checkpoint due at once."""
        self._cut_due_s = now_s

    def repeat_at_once(self, now_s: float) -> None:
        """Send all that is not recorded again now."""
        self._repeat_due_s, self._repeat_wait_s = now_s, self._timeouts.resend_s

    def note_progress(self, now_s: float) -> None:
        """Note that the owner takes checkpoints in: those that it has yet to record are repeated only if it stops
        to.
        """
        self._repeat_due_s = now_s + self._timeouts.resend_s
        self._repeat_wait_s = self._timeouts.next_resend_s(self._timeouts.resend_s)

    def take_due(self, outbox: Outbox, now_s: float) -> Iterator[Chunk]:
        """Yield what is to be sent now: first what is repeated, then what is cut now."""
        if outbox.chunks and now_s >= self._repeat_due_s:
            yield from tuple(outbox.chunks)
            self._repeat_due_s = now_s + self._repeat_wait_s
            self._repeat_wait_s = self._timeouts.next_resend_s(self._repeat_wait_s)
        if now_s < self._cut_due_s:
            return
        while (cut := outbox.cut()) is not None:
            if len(outbox.chunks) == 1:
                self.note_progress(now_s)
            yield cut
            self._cut_due_s = now_s + self._timeouts.checkpoint_s


# --- states of a job that are reported --------------------------------------------------------------------------------


class JobEvent(Enum):
    """A `JobEvent` changes the state of a job that is reported. A person may change it too, in the job's row."""

    QUEUE = "iteration waits for long"
    START = "iteration runs for long"
    SUCCEED = "iteration succeeded"
    BUILD = "iteration waits for a build"
    FAIL = "iteration, source, trigger or target failed"
    INTERRUPT = "iteration canceled"
    RECOVER = "source or trigger answers again"
    TAKE_OVER = "taken over from another node"


# state diagram of JOB_STATES
#
#   any                           ── iteration waits for long ────────────────────▶  pending
#   any                           ── iteration runs for long ─────────────────────▶  running
#   any                           ── iteration succeeded ─────────────────────────▶  completed
#   any                           ── iteration waits for a build ─────────────────▶  pending
#   any                           ── iteration, source, trigger or target failed ─▶  error
#   pending | running             ── iteration canceled ──────────────────────────▶  canceled
#   any                           ── source or trigger answers again ─────────────▶  completed
#   pending | running | canceled  ── taken over from another node ────────────────▶  completed

JOB_STATES: StateTable[JobState, JobEvent] = StateTable(
    {
        JobEvent.QUEUE: dict.fromkeys(JobState, JobState.PENDING),
        JobEvent.START: dict.fromkeys(JobState, JobState.RUNNING),
        JobEvent.SUCCEED: dict.fromkeys(JobState, JobState.COMPLETED),
        JobEvent.BUILD: dict.fromkeys(JobState, JobState.PENDING),
        JobEvent.FAIL: dict.fromkeys(JobState, JobState.ERROR),
        JobEvent.INTERRUPT: dict.fromkeys((JobState.PENDING, JobState.RUNNING), JobState.CANCELED),
        JobEvent.RECOVER: dict.fromkeys(JobState, JobState.COMPLETED),
        JobEvent.TAKE_OVER: dict.fromkeys((JobState.PENDING, JobState.RUNNING, JobState.CANCELED), JobState.COMPLETED),
    }
)
