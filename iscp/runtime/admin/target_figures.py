"""Reads the figures of a job's target for whoever is shown the job: within a time, and never failing that."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import InvalidRequest, IscpError
from iscp.core.values.untrusted_values import error_text
from iscp.ports.consumer import ConsumerKind
from iscp.runtime.access.place_guard import ANYWHERE, PlaceGuard

READ_S = 2.0
"""Seconds that reading the figures of a target may take; they are left out of an answer that would take longer."""

READERS_MAX = 4
"""Targets that are read at a time. While so many readers hang, figures are left out of answers."""


@dataclass(frozen=True, slots=True)
class TargetFigures:
    """The figures by their names, or why there are none in `fault`."""

    values: Mapping[str, float] = field(default_factory=dict)
    fault: str = ""


NO_FIGURES = TargetFigures()


class FigureReader:
    """Reads figures on threads of its own, as a storage that hangs must block no answer. Safe for threads."""

    def __init__(
        self, kinds: Callable[[str], ConsumerKind], places: PlaceGuard = ANYWHERE, read_s: float = READ_S
    ) -> None:
        self._kinds = kinds
        self._places = places
        self._read_s = read_s
        self._free = threading.Semaphore(READERS_MAX)
        self._pool = ThreadPoolExecutor(READERS_MAX, "iscp-figures")

    def read(self, row: JobRow) -> TargetFigures:
        """Return the figures of a job's target; none where its kind has no such thing. Raises nothing."""
        try:
            figures = self._kinds(row.spec.consumer.kind).figures
        except InvalidRequest:  # the job's own status says it
            return NO_FIGURES
        if figures is None:
            return NO_FIGURES
        if not self._free.acquire(blocking=False):
            return TargetFigures(fault=f"they were not read: {READERS_MAX} other targets are being read")
        future = self._pool.submit(self._read, figures, row)
        future.add_done_callback(lambda _: self._free.release())
        return self._result(future)

    def _read(self, figures: Callable[[JobRow], Mapping[str, float]], row: JobRow) -> Mapping[str, float]:
        # A link that was put there since the job was registered leads nowhere else.
        self._places.require_target(row.key.account, row.spec.consumer.target, "target")
        return {str(name): _number(value) for name, value in figures(row).items()}

    def _result(self, future: Future[Mapping[str, float]]) -> TargetFigures:
        if not wait([future], self._read_s).done:
            return TargetFigures(fault=f"they could not be read within {self._read_s:.3g} s")
        error = future.exception()
        if error is None:
            return TargetFigures(future.result())
        return TargetFigures(fault=error.message if isinstance(error, IscpError) else error_text(error))


def _number(value: float) -> float:
    """Return a figure as the wire and JSON have it. Raises ValueError for what is no finite number."""
    if not math.isfinite(number := float(value)):
        raise ValueError(f"a figure is {number}")
    return number
