"""Reads the figures of a job's target for whoever is shown the job: within a time, and never failing that."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import InvalidRequest, IscpError
from iscp.ports.consumer import ConsumerKind
from iscp.runtime.access.place_guard import ANYWHERE, PlaceGuard
from iscp.runtime.reads.account_turns import TargetReads

READ_S = 2.0
"""Seconds that reading the figures of a target may take; they are left out of an answer that would take longer."""


@dataclass(frozen=True, slots=True)
class TargetFigures:
    """The figures by their names, or why there are none in `fault`."""

    values: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""


NO_FIGURES = TargetFigures()


class FigureReader:
    """Reads figures, of READERS_MAX targets at a time; while so many hang, they are left out of answers."""

    def __init__(
        self, kinds: Callable[[str], ConsumerKind], places: PlaceGuard = ANYWHERE, read_s: float = READ_S
    ) -> None:
        self._kinds = kinds
        self._reads = TargetReads(places, read_s, "iscp-figures", "read of the figures")

    def read(self, row: JobRow) -> TargetFigures:
        """Return the figures of a job's target; none where its kind has no such thing. Raises nothing."""
        try:
            figures = self._kinds(row.spec.consumer.kind).figures
        except InvalidRequest:  # the job's own status says it
            return NO_FIGURES
        if figures is None:
            return NO_FIGURES
        try:
            return TargetFigures(self._reads.run(row, lambda: _numbers(figures(row))))
        except IscpError as error:
            return TargetFigures(fault=error.message)


def _numbers(figures: Mapping[str, float]) -> Mapping[str, float]:
    return {str(name): _number(value) for name, value in figures.items()}


def _number(value: float) -> float:
    """Return a figure as the wire and JSON have it. Raises ValueError for what is no finite number."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"a figure is {number}")
    return number
