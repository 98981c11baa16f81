"""The port of kinds whose targets have figures that no report of an iteration has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from iscp.core.job.job_row import JobRow


@runtime_checkable
class Measured(Protocol):
    """A kind of consumer that can say of a job's target how large it is, and how well kept."""

    def figures(self, row: JobRow) -> Mapping[str, float]:
        """Return the figures of the job's target as it is now, by their names; none where there is no target yet.

        No row is read for them. Raises IscpError where the target cannot be read.
        """
