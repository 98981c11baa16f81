"""Targets that stand as a test says (port TargetProbe)."""

from __future__ import annotations

from collections.abc import Iterable

from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import TargetSeen
from iscp.model.values.errors import IscpError


class FakeTargets:
    """`faults` by job name are what a probe finds; `moves` counts commits; `looks` counts the probes."""

    def __init__(self) -> None:
        self.faults: dict[str, IscpError] = {}
        self.looks: dict[str, int] = {}
        self.moves: dict[str, int] = {}

    def location(self, row: JobRow, seen: TargetSeen | None) -> str:
        return f"/targets/{row.key.job_name}"

    def probe(self, row: JobRow, seen: TargetSeen | None) -> TargetSeen:
        name = row.key.job_name
        self.looks[name] = self.looks.get(name, 0) + 1
        if name in self.faults:
            raise self.faults[name]
        now = f"{name}-{self.moves.get(name, 0)}"
        return seen if seen is not None and seen.uri == now else TargetSeen(now)

    def fault(self, rows: Iterable[JobRow]) -> IscpError | None:
        """As WaitedTargets has it."""
        return next((self.faults[name] for row in rows if (name := row.key.job_name) in self.faults), None)
