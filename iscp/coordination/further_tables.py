"""Tables that jobs read besides the one that they are on: how far these are known to be ahead of what was applied.

They are probed along with a job's own table, at its pace, each once for all jobs that read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from iscp.coordination.protocol.messages import FurtherSeen
from iscp.core.job.start_rule import ProbeState
from iscp.core.values.watermark import NOTHING_APPLIED, SourceMark, SourceMarks


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
    """The tables that one table's jobs read besides it. `behind_at_s` is as in TrackedTable, by URI."""

    __slots__ = ("behind_at_s", "seen")

    def __init__(self) -> None:
        self.seen: dict[str, ProbeState | None] = {}
        self.behind_at_s: dict[str, float] = {}

    def keep(self, jobs: Sequence[SeveralTables]) -> None:
        """Have exactly these jobs read further tables from now on."""
        wanted = {uri: max(NOTHING_APPLIED, job.version(uri)) for job in jobs for uri in job.further}
        known = {uri: ProbeState(version) if version >= 0 else None for uri, version in wanted.items()}
        self.seen = {uri: self.seen.get(uri) or first for uri, first in known.items()}
        self.behind_at_s = {uri: at_s for uri, at_s in self.behind_at_s.items() if uri in wanted}
        self.compare(jobs)

    def queries(self) -> tuple[FurtherQuery, ...]:
        return tuple([FurtherQuery(uri, seen) for uri, seen in self.seen.items()])

    def versions(self) -> dict[str, int]:
        return {uri: seen.version for uri, seen in self.seen.items() if seen}

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
            self.behind_at_s.setdefault(answer.uri, state.since_s)
        self.compare(jobs)
        return doubted

    def compare(self, jobs: Sequence[SeveralTables]) -> None:
        """Compare the jobs with what is known, after something was seen or applied."""
        known = self.versions()
        for job in jobs:
            job.behind = any(known.get(uri, NOTHING_APPLIED) > job.version(uri) for uri in job.further)

    def see(self, jobs: Sequence[SeveralTables], at_s: float) -> tuple[FurtherSeen, ...]:
        """Return each as it was last seen, with the age of its oldest commit that one of these jobs has not applied."""
        known = self.versions().items()
        return tuple([FurtherSeen(uri, version, self._lag_s(uri, version, jobs, at_s)) for uri, version in known])

    def _lag_s(self, uri: str, version: int, jobs: Sequence[SeveralTables], at_s: float) -> float:
        marks = [job.marks[uri].watermark for job in jobs if uri in job.marks]
        late = [mark for mark in marks if mark.version < version]
        if not late:
            self.behind_at_s.pop(uri, None)
            return 0.0
        state = self.seen[uri]
        since_s = self.behind_at_s.get(uri) or (state.since_s if state else 0.0) or at_s
        self.behind_at_s[uri] = since_s = max(since_s, min(mark.at_s for mark in late))
        return max(0.001, at_s - since_s)
