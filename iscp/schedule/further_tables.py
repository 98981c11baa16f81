"""Tables that jobs read besides the one that they are on: how far these are known to be ahead of what was applied.

They are probed along with a job's own table, at its pace, each once for all jobs that read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from iscp.model.job.start_rule import ProbeState
from iscp.model.protocol.messages import FurtherSeen
from iscp.model.values.watermark import NOTHING_APPLIED, SourceMark, SourceMarks
from iscp.schedule.lag import LEAST_S, BehindVersions, ProbeTimes, commit_time_s


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
