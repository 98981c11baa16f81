"""The lag of a job: what is known of it, and how much it can be at most.

A node knows of a source only what its probes have found. Between two of them anybody may commit, so that a job with
everything applied lags by anything up to the time since the last probe. A lag therefore has two bounds, and what is
shown as one figure is the greater: nothing is shown as fresher than it is known to be.

When a commit was made is known by two probes, one that did not find it yet and one that did. The time of its file is
more exact, and counts if it lies between them. Otherwise a clock was wrong, or somebody has set that time, and the
commit counts as made right after the first of them. What commits say of themselves counts only where no probe of this
node was before them.

Times of probes are of the node's monotonic clock and are reported as ages, so that a clock that is set changes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from math import inf
from operator import attrgetter
from typing import NamedTuple

from iscp.coordination.clocks import of_the_future
from iscp.coordination.protocol.messages import VERSIONS_MAX, FurtherSeen, SourceSeen, VersionAge
from iscp.core.job.job_row import JobRow
from iscp.core.job.several_tables import further_tables
from iscp.core.values.watermark import Watermark

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
