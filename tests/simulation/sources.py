"""Tables and targets: versions that come, and commits that go by compare-and-set.

Stands for Delta: a source has versions, a sink takes a commit only as the next seq. What a sink holds is kept as how
far its content reaches, which shows any loss or doubling at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from iscp.model.values.watermark import NOTHING_APPLIED, Position, SourceMarks, Watermark
from tests.simulation.violation import expect


class Kind(StrEnum):
    CLAIM = "claim"
    SNAPSHOT = "snapshot"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class Commit:
    """What a writer brings to a sink, as it was made: on top of `seq - 1`, for (`since`, `to`].

    Of several tables it goes on from those `held`, to those of `sources`.
    """

    seq: int
    job_id: str
    since: int
    to: int
    kind: Kind
    writer: str
    held: SourceMarks = field(default_factory=dict)
    sources: SourceMarks = field(default_factory=dict)


class Sink:
    """`begun`: the latest registration whose work has begun on it; what an earlier one brings after that is wrong.

    `refused` counts what came too late. `committed_s`: when each version of its source was made.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seq = 0
        self.job_id = ""
        self.content = NOTHING_APPLIED
        self.begun = ""
        self.sources: SourceMarks = {}
        self.refused = 0
        self.commits: list[Commit] = []
        self.committed_s: list[float] = []

    def position(self) -> Position:
        at_s = self.committed_s[self.content] if 0 <= self.content < len(self.committed_s) else 0.0
        return Position(self.seq, Watermark(self.content, at_s), self.job_id, sources=self.sources)

    def takes(self, commit: Commit) -> bool:
        """The compare-and-set."""
        return commit.seq == self.seq + 1

    def land(self, commit: Commit) -> bool:
        """Whether it was taken."""
        if not self.takes(commit):
            self.refused += 1
            return False
        expect(commit.seq == self.seq + 1, "{} is a second commit of a seq of {}, at {}", commit, self.name, self.seq)
        expect(commit.job_id >= self.begun, "{} of a former registration lands after {} began", commit, self.begun)
        if commit.kind is Kind.TAIL:
            expect(commit.job_id == self.job_id, "{} goes on from rows of {}", commit, self.job_id)
            expect(
                commit.since == self.content, "{} leaves a gap or doubles: {} is at {}", commit, self.name, self.content
            )
            expect(commit.held == self.sources, "{} goes on from other versions than {} has", commit, self.name)
            expect(_forward(commit), "{} goes back", commit)
        if commit.kind is Kind.SNAPSHOT:
            expect(commit.job_id == self.begun, "{} builds what it has not claimed", commit)
        self.seq, self.job_id = commit.seq, commit.job_id
        self.sources = commit.sources
        self.content = NOTHING_APPLIED if commit.kind is Kind.CLAIM else commit.to
        self.commits.append(commit)
        return True


def _forward(commit: Commit) -> bool:
    """Of several tables one has to have moved, and none back."""
    if not commit.sources:
        return commit.to > commit.since
    pairs = [(commit.held[uri].watermark.version, mark.watermark.version) for uri, mark in commit.sources.items()]
    return all(held <= now for held, now in pairs) and any(held < now for held, now in pairs)
