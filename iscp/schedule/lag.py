"""The lag of jobs: what is known of each, and how much it can be at most; the global checkpoint, up to which everything
is applied; the clocks that both go by; and the tables that jobs read besides their own.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import NamedTuple

from iscp.model.job.job_row import JobRow, further_tables
from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.messages import VERSIONS_MAX, FurtherSeen, SourceSeen, VersionAge
from iscp.model.values.ids import ShardId
from iscp.model.values.watermark import NOTHING_APPLIED, SourceMark, SourceMarks, Watermark

# --- clocks -----------------------------------------------------------------------------------------------------------
# Times from nodes and commits count only as far as clocks may differ: clocks that are ahead of the owner's are found.

CLOCKS_APART_S = 60.0
"""Seconds by which clocks of nodes, and of those who commit, may differ; a clock that is further ahead is wrong."""


def of_the_future(at_s: float, now_s: float) -> bool:
    """Return whether a time (Unix seconds) is further ahead than clocks are apart."""
    return at_s > now_s + CLOCKS_APART_S


AHEAD_FOR_S = 600.0
"""Seconds after which a clock that was set ahead is believed: what sets a clock wrong for a moment is over by then."""


class SteadyTime:
    """The time of day of an owner, as far as it counts: a clock that jumps ahead counts only once it has stayed there.

    Until then the time goes on from what it was, by the monotonic clock. A clock that is set back counts at once.
    """

    def __init__(self) -> None:
        self._offset_s: float | None = None
        self._ahead: tuple[float, float] | None = None  # by how much it is ahead of the monotonic clock, and since when

    def read(self, at_s: float, now_s: float) -> float:
        """Return the time (Unix seconds) where the clock says `at_s`, at `now_s` by the monotonic one."""
        offset_s = at_s - now_s
        if self._offset_s is None or not of_the_future(offset_s, self._offset_s):
            self._offset_s, self._ahead = offset_s, None
            return at_s
        if self._ahead is None or abs(offset_s - self._ahead[0]) > CLOCKS_APART_S:
            self._ahead = offset_s, now_s
        if now_s - self._ahead[1] < AHEAD_FOR_S:
            return now_s + self._offset_s
        self._offset_s, self._ahead = offset_s, None
        return at_s


class NodeClocks:
    """The nodes whose clocks are ahead, so that each is reported once."""

    def __init__(self) -> None:
        self._ahead: set[str] = set()

    def note(self, node_id: str, at_s: float, now_s: float) -> str:
        """Return what is to be reported of a node that has read its clock at `at_s`; empty if there is nothing, or it
        was reported.
        """
        if not of_the_future(at_s, now_s):
            if node_id not in self._ahead:
                return ""
            self._ahead.discard(node_id)
            return "its clock agrees with the owner's again"
        if node_id in self._ahead:
            return ""
        self._ahead.add(node_id)
        return f"its clock is {at_s - now_s:.0f} s ahead of the owner's: its times count for nothing"


# --- the lag of a job -------------------------------------------------------------------------------------------------
# A node knows of a source only what its probes have found. Between two of them anybody may commit, so that a job with
# everything applied lags by anything up to the time since the last probe. A lag therefore has two bounds, and what is
# shown as one figure is the greater: nothing is shown as fresher than it is known to be.
#
# When a commit was made is known by two probes, one that did not find it yet and one that did. The time of its file is
# more exact, and counts if it lies between them. Otherwise a clock was wrong, or somebody has set that time, and the
# commit counts as made right after the first of them. What commits say of themselves counts only where no probe of this
# node was before them.
#
# Times of probes are of the node's monotonic clock and are reported as ages, so that a clock that is set changes
# nothing.

LEAST_S = 0.001
"""Least lag, in seconds, of a job that is known to have something to apply."""


@dataclass(frozen=True, slots=True)
class Lag:
    """The staleness of a job in seconds: `least_s` for certain, `most_s` at most; both are -1 if nothing is known."""

    least_s: float
    most_s: float

    @property
    def known(self) -> bool:
        return self.most_s >= 0.0


UNKNOWN = Lag(-1.0, -1.0)


class ProbeTimes(NamedTuple):
    """When a probe was sent and answered: `sent_s` and `now_s` by the node's monotonic clock, `at_s` (Unix) is now."""

    sent_s: float
    now_s: float
    at_s: float

    def of_unix(self, at_s: float) -> float:
        """Return a Unix time by the monotonic clock; -inf if it is 0, which is none."""
        return self.now_s - (self.at_s - at_s) if at_s else -inf


class BehindVersions:
    """The versions of one table that some job has not gone beyond, each with when the next commit was made.

    `since_s` of them are times of one monotonic clock; the table's newest version is not among them.
    """

    __slots__ = ("_next_s", "_versions")

    def __init__(self) -> None:
        self._versions: list[int] = []
        self._next_s: list[float] = []

    def note(self, version: int, next_s: float) -> None:
        """Note that `version` was the newest, until the next commit was made at `next_s` (-inf: nobody knows)."""
        if next_s == -inf:
            return
        while self._versions and self._versions[-1] >= version:  # the table is another one
            del self._versions[-1], self._next_s[-1]
        self._versions.append(version)
        self._next_s.append(next_s)
        if len(self._versions) > VERSIONS_MAX:
            self._thin()

    def _thin(self) -> None:
        around = [later - before for before, later in zip(self._next_s, self._next_s[2:], strict=False)]
        place = 1 + around.index(min(around))
        del self._versions[place], self._next_s[place]

    def since_s(self, version: int, otherwise_s: float) -> float:
        """Return when the oldest commit after `version` was made at the earliest; `otherwise_s` if all are later."""
        place = bisect_right(self._versions, version)
        return self._next_s[place - 1] if place else otherwise_s

    def forget(self, version: int) -> None:
        """Forget what is of no use to jobs at `version`, or beyond."""
        passed = max(0, bisect_right(self._versions, version) - 1)
        del self._versions[:passed], self._next_s[:passed]

    def ages(self, at_s: float) -> tuple[VersionAge, ...]:
        """Return how old the commits after each version were at `at_s`."""
        pairs = zip(self._versions, self._next_s, strict=True)
        return tuple([VersionAge(version, max(LEAST_S, at_s - next_s)) for version, next_s in pairs])


def commit_time_s(made_s: float, before_s: float, now_s: float) -> float:
    """Return when a commit was made that a probe at `before_s` did not find, and another has now: as its file says
    (`made_s`), if that can be.
    """
    return made_s if before_s <= made_s <= now_s else before_s


def applied_since_s(row: JobRow, watermark: Watermark, at_s: float) -> float:
    """Return the Unix time after which all was made that the job has not applied, by what commits say of themselves.

    A commit that is dated later than now says nothing: what is outstanding came after the job.
    """
    return watermark.at_s if 0.0 < watermark.at_s <= at_s else row.create_at_s


def lag_of(row: JobRow, seen: SourceSeen | None, now_s: float) -> Lag:
    """Return the lag of a job whose table was `seen` so (None: by nobody), at `now_s` by the clock of its times.

    A target in doubt is stale since the doubt, one that is not built since its job was registered.
    """
    if row.watermark.version < 0:
        return _lag_since(row.create_at_s, now_s)
    if seen is None or not seen.checked_at_s:
        return UNKNOWN
    lag = Lag(0.0, max(0.0, now_s - seen.checked_at_s))
    if row.watermark.version < seen.source_version:
        lag = _behind(row, row.watermark, seen, seen, now_s)
    for uri in further_tables(row):
        lag = _greater(lag, _further_lag(row, uri, seen, now_s))
    if doubted_at_s := row.status.doubted_at_s:
        lag = _greater(lag, _lag_since(doubted_at_s, now_s))
    return lag


def _lag_since(at_s: float, now_s: float, least_s: float = LEAST_S) -> Lag:
    if of_the_future(at_s, now_s):
        return UNKNOWN  # this clock is wrong, or was
    since_s = max(least_s, now_s - at_s)
    return Lag(since_s, since_s)


def _greater(one: Lag, other: Lag) -> Lag:
    if not (one.known and other.known):
        return UNKNOWN
    return Lag(max(one.least_s, other.least_s), max(one.most_s, other.most_s))


def _further_lag(row: JobRow, uri: str, seen: SourceSeen, now_s: float) -> Lag:
    """Return the lag behind a table that the job reads besides its own."""
    mark, found = row.sources.get(uri), next((each for each in seen.further if each.uri == uri), None)
    if mark is None or found is None:
        since_s = applied_since_s(row, mark.watermark, now_s) if mark else row.create_at_s
        lag = _lag_since(since_s, now_s, 0.0)
        return replace(lag, least_s=0.0) if lag.known else lag
    if mark.watermark.version >= found.version:
        return Lag(0.0, max(0.0, now_s - seen.checked_at_s) + found.unseen_s)
    return _behind(row, mark.watermark, found, seen, now_s)


def _behind(row: JobRow, mark: Watermark, table: SourceSeen | FurtherSeen, seen: SourceSeen, now_s: float) -> Lag:
    """Return the lag of a job that is known to be behind a table."""
    unseen_s = max(0.0, now_s - seen.checked_at_s)
    own = _lag_since(applied_since_s(row, mark, now_s), now_s, max(LEAST_S, unseen_s))
    place = bisect_right(table.ages, mark.version, key=attrgetter("version"))
    if place:
        age = table.ages[place - 1]
        most_s = unseen_s + age.age_s
        return Lag(most_s if age.version == mark.version else LEAST_S, most_s)
    if seen.reported_at_s or row.paused or not own.known:
        return own  # no probe of this node was before that commit, or no job that runs is so far behind
    # A node reports no ages that is older than these: its figure is of the slowest job, and none is staler.
    most_s = max(LEAST_S, min(unseen_s + table.lag_s, own.most_s) if table.lag_s else own.most_s)
    return Lag(most_s, most_s)


def probe_age_s(seen: SourceSeen, now_s: float) -> float:
    """Return how old the probe is at least that a node has just reported, at `now_s` by the receiver's clock.

    That is the time since it by both clocks. A node whose clock is ahead would otherwise have probed in the future, and
    hide how long ago that was: then it is its own age of the probe when it reported that, as for how long the report
    was under way is not known.
    """
    own_s = seen.reported_at_s - seen.checked_at_s if seen.reported_at_s else 0.0
    return max(0.0, own_s, now_s - seen.checked_at_s)


# --- the global checkpoint --------------------------------------------------------------------------------------------
# The checkpoint is the commit time up to which everything is applied, for each table and for all (after TiCDC's global
# checkpoint).
#
# Invariant: what was committed to its source up to the checkpoint is applied by every wanted job but those left out,
# which are listed. Left out are jobs that are not built, paused or failed for good, and jobs that are catching up:
# those that came to count (built, resumed, rebuilt by a resync, a split or a merge) when they had applied less than the
# checkpoint says. The checkpoint never goes back, so it cannot take them in before they have reached it.
#
# A job that has applied all that was there when its source was probed is resolved up to that probe, else up to the last
# commit that it has applied. A job that counted once and only has much to do is still applied up to the checkpoint,
# though that cannot be seen of it now: the checkpoint waits for it.
#
# Times come from the clocks of nodes and of those who commit: a time that is ahead of the owner's clock says nothing.
# The owner's own clock counts as SteadyTime has it, so that one probe by an owner whose clock jumps ahead moves
# nothing. If the checkpoint itself was taken ahead, by an owner whose clock was wrong, it is taken back once the nodes
# that probed most of the sources agree with the owner's clock: else that clock may be the one that is behind.


def counts(row: JobRow) -> bool:
    """Return whether the checkpoint waits for this job, once it has caught up."""
    return row.watermark.version >= 0 and not row.paused and not row.failed_for_good


def resolved_at_s(row: JobRow, seen: SourceSeen | None, now_at_s: float = inf) -> float:
    """Return the Unix time up to which the job is known to have applied everything, at `now_at_s`; 0 if unknown."""
    version, applied_at_s = row.watermark.version, row.watermark.at_s
    if of_the_future(applied_at_s, now_at_s):
        applied_at_s = 0.0
    if seen is None or version < seen.source_version or of_the_future(seen.checked_at_s, now_at_s):
        return min(applied_at_s, now_at_s)
    if version == seen.source_version:  # the probe was later than the commit, whatever that is dated
        return min(seen.checked_at_s, now_at_s)
    return min(max(applied_at_s, seen.checked_at_s), now_at_s)


class GlobalCheckpoint:
    """The least of all shards' times; it goes back by `take_back` alone. A change costs the logarithm of their number.

    `at_s` is what was reported last: a commit time (Unix seconds), 0 before there is one. `catching_up`: the job_ids of
    those that count and have not reached it, of shards that have any.
    """

    def __init__(self, at_s: float = 0.0) -> None:
        self.at_s = at_s
        self.catching_up: dict[ShardId, tuple[str, ...]] = {}
        self._covered: dict[ShardId, tuple[str, ...]] = {}
        self._shards: dict[ShardId, float] = {}
        self._heap: list[tuple[float, ShardId]] = []
        # Shards with a job that counts; whether who looked at its source agrees with the owner's clock.
        self._agreeing: dict[ShardId, bool] = {}
        self._agree = 0

    def take(self, shard: ShardId, jobs: Sequence[JobRow], seen: SourceSeen | None, now_at_s: float = inf) -> None:
        """Take what is known of the shard at `now_at_s` (Unix time); without jobs it is not wanted any more.

        `seen` is None until this term has heard of a probe of the source. Before that nobody knows how far its jobs are
        behind: the checkpoint waits.
        """
        before = self._covered.get(shard, ())
        covered: list[str] = []
        behind: list[str] = []
        least_s = inf
        for row in filter(counts, jobs):
            resolved_s = resolved_at_s(row, seen, now_at_s)
            reached = row.job_id in before or resolved_s >= self.at_s
            (covered if reached else behind).append(row.job_id)
            if reached or seen is None:
                least_s = min(least_s, resolved_s)
        _keep(self._covered, shard, covered)
        _keep(self.catching_up, shard, behind)
        self._note_clock(shard, seen, now_at_s, there=bool(covered or behind))
        self._set(shard, least_s)

    def _note_clock(self, shard: ShardId, seen: SourceSeen | None, now_at_s: float, *, there: bool) -> None:
        self._agree -= self._agreeing.pop(shard, False)
        if there:
            agrees = seen is not None and not of_the_future(seen.checked_at_s, now_at_s)
            self._agreeing[shard] = agrees
            self._agree += agrees

    def _set(self, shard: ShardId, at_s: float) -> None:
        if at_s == self._shards.get(shard, inf):
            return
        if at_s == inf:
            del self._shards[shard]
        else:
            self._shards[shard] = at_s
            heapq.heappush(self._heap, (at_s, shard))
        if len(self._heap) > 2 * len(self._shards) + 16:  # what no longer holds is not to pile up
            self._heap = [(each, name) for name, each in self._shards.items()]
            heapq.heapify(self._heap)

    def covers(self, row: JobRow) -> bool:
        """Return whether the checkpoint speaks for this job."""
        return row.job_id in self._covered.get(row.key.shard, ())

    def least_s(self) -> float:
        """Return the least of the shards' times now; inf if none counts."""
        while self._heap and self._shards.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else inf

    def advance(self) -> bool:
        """Go on to the present least, while every wanted shard runs and is known; whether that was any further."""
        least_s = self.least_s()
        if least_s == inf or least_s <= self.at_s:
            return False
        self.at_s = least_s
        return True

    def take_back(self, now_at_s: float) -> bool:
        """Take back a checkpoint ahead of the owner's clock, if most sources agree with that; return whether it was."""
        if not of_the_future(self.at_s, now_at_s) or 2 * self._agree <= len(self._agreeing):
            return False
        self.at_s = min(now_at_s, self.least_s())
        return True


def _keep(of: dict[ShardId, tuple[str, ...]], shard: ShardId, job_ids: list[str]) -> None:
    if job_ids:
        of[shard] = tuple(job_ids)
    else:
        of.pop(shard, None)


# --- tables that jobs read besides their own --------------------------------------------------------------------------
# How far these tables are known to be ahead of what was applied. They are probed along with a job's own table, at its
# pace, each once for all jobs that read it.


@dataclass(frozen=True, slots=True)
class FurtherQuery:
    """A further table is to be probed, going on from `seen` (None: for the first time)."""

    uri: str
    seen: ProbeState | None


@dataclass(frozen=True, slots=True)
class FurtherAnswer:
    """An answer to a probe of a further table; `state` is None if nobody can say."""

    uri: str
    state: ProbeState | None


@dataclass(slots=True)
class SeveralTables:
    """A job that reads tables besides its own: how far each table was read, and whether one is known to be ahead."""

    further: tuple[str, ...]
    marks: SourceMarks
    behind: bool = False

    def version(self, uri: str) -> int:
        mark = self.marks.get(uri)
        return mark.watermark.version if mark else NOTHING_APPLIED

    def stalled(self, after: SourceMarks, known: Mapping[str, int]) -> bool | None:
        """Return whether all of what was `known` to be outstanding in them still is; None if nothing was."""
        if all(version <= self.version(uri) for uri, version in known.items()):
            return None
        return not self.moves_to(after)

    def moves_to(self, marks: SourceMarks) -> bool:
        return any(marks.get(uri, read) != read for uri, read in self._read_marks())

    def _read_marks(self) -> Iterable[tuple[str, SourceMark | None]]:
        return ((uri, self.marks.get(uri)) for uri in self.further)


class FurtherTables:
    """The tables that one table's jobs read besides it, as each was last `seen`. Times are of the node's monotonic
    clock: `probed_s` of the last probe of each that succeeded, `behind` of what some job has not applied.
    """

    __slots__ = ("behind", "probed_s", "seen")

    def __init__(self) -> None:
        self.seen: dict[str, ProbeState | None] = {}
        self.behind: dict[str, BehindVersions] = {}
        self.probed_s: dict[str, float] = {}

    def keep(self, jobs: Sequence[SeveralTables]) -> None:
        """Have exactly these jobs read further tables from now on."""
        wanted = {uri: max(NOTHING_APPLIED, job.version(uri)) for job in jobs for uri in job.further}
        known = {uri: ProbeState(version) if version >= 0 else None for uri, version in wanted.items()}
        self.seen = {uri: self.seen.get(uri) or first for uri, first in known.items()}
        self.behind = {uri: each for uri, each in self.behind.items() if uri in wanted}
        self.probed_s = {uri: each for uri, each in self.probed_s.items() if uri in wanted}
        self.compare(jobs)

    def queries(self) -> tuple[FurtherQuery, ...]:
        return tuple([FurtherQuery(uri, seen) for uri, seen in self.seen.items()])

    def versions(self) -> dict[str, int]:
        return {uri: seen.version for uri, seen in self.seen.items() if seen}

    def note_probed(self, answers: Sequence[FurtherAnswer], times: ProbeTimes) -> None:
        """Note that each table was probed, but for those that nobody could reach; before `take`."""
        found = {answer.uri: answer.state for answer in answers}
        for uri, seen in self.seen.items():
            state = found.get(uri, seen)
            if state is None:
                continue
            if seen is not None and state.version > seen.version:
                made_s = times.of_unix(state.since_s)
                next_s = commit_time_s(made_s, self.probed_s.get(uri, -inf), times.now_s)
                self.behind.setdefault(uri, BehindVersions()).note(seen.version, next_s)
            self.probed_s[uri] = times.sent_s

    def take(
        self, answers: Sequence[FurtherAnswer], jobs: Sequence[SeveralTables], *, ran_since_probe: bool
    ) -> set[str]:
        """Take what was found at tables that have changed, and return the URIs whose jobs have to run whatever the
        versions say.

        `ran_since_probe` is as in TrackedTable. If nobody can reach a table, its jobs' iterations say why.
        """
        doubted = set()
        for answer in answers:
            if answer.uri not in self.seen:
                continue
            seen, state = self.seen[answer.uri], answer.state
            if state is None:
                doubted.add(answer.uri)
                continue
            top = max((job.version(answer.uri) for job in jobs), default=NOTHING_APPLIED)
            recreated = seen is not None and seen.stamp and seen.stamp != state.stamp and state.version <= seen.version
            if recreated or (state.version < top and not ran_since_probe):
                doubted.add(answer.uri)
            self.seen[answer.uri] = state
        self.compare(jobs)
        return doubted

    def compare(self, jobs: Sequence[SeveralTables]) -> None:
        """Compare the jobs with what is known, after something was seen or applied."""
        known = self.versions()
        for job in jobs:
            job.behind = any(known.get(uri, NOTHING_APPLIED) > job.version(uri) for uri in job.further)

    def since_s(self, uri: str, version: int) -> float:
        """Return when the oldest commit was made that a job at `version` has not applied: -inf if nobody knows, inf if
        there is none.
        """
        if self.versions().get(uri, NOTHING_APPLIED) <= version:
            return inf
        behind = self.behind.get(uri)
        return behind.since_s(version, -inf) if behind else -inf

    def see(self, jobs: Sequence[SeveralTables], at_s: float) -> tuple[FurtherSeen, ...]:
        """Return each as it was known at `at_s`, when the jobs' own table was probed."""
        return tuple(
            [self._see(uri, version, jobs, at_s) for uri, version in self.versions().items() if uri in self.probed_s]
        )

    def _see(self, uri: str, version: int, jobs: Sequence[SeveralTables], at_s: float) -> FurtherSeen:
        unseen_s = max(0.0, at_s - self.probed_s[uri])
        slowest = min((job.version(uri) for job in jobs if uri in job.marks), default=version)
        if slowest >= version:
            self.behind.pop(uri, None)
            return FurtherSeen(uri, version, 0.0, unseen_s)
        behind = self.behind.setdefault(uri, BehindVersions())
        behind.forget(slowest)
        since_s = behind.since_s(slowest, -inf)
        # If no probe was before that commit, the owner goes by the job's own row.
        lag_s = LEAST_S if since_s == -inf else max(LEAST_S, at_s - since_s)
        return FurtherSeen(uri, version, lag_s, unseen_s, behind.ages(at_s))
