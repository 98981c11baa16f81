"""Send a node's reports to the owner: gathered, cut into numbered checkpoints, and stored until recorded.

Within an owner's term each report is recorded once, in order: checkpoints are numbered, the owner takes only the next
number, and the node repeats what is not recorded. Across owners a checkpoint whose acknowledgement was lost with the
old owner is sent to the new one as well, with the same content: history entries may then come twice (they are equal in
job_id, seq and start time), statuses are idempotent. Nothing is ever dropped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from iscp.coordination.protocol.messages import CHECKPOINT_BYTES_MAX, ShardCheckpoint, SourceSeen
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobReport
from iscp.core.values.ids import JobKey, ShardId

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
