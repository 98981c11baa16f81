"""What builds a range of a snapshot at a node."""

from __future__ import annotations

from typing import Protocol

from iscp.core.build_task import RangeBatch
from iscp.ports.system import Guard


class RangeBuilder(Protocol):
    """Reads a range of a table once, and stages its rows for each job of the batch.

    Idempotent: a range that was staged for a job already is not staged again for it.
    """

    def build(self, batch: RangeBatch, guard: Guard) -> None:
        """Afterwards each job's part is durable, with its manifest. Nothing of it is visible to readers of targets.

        Raises Canceled and LeaseLost as `guard` says, PlanOutdated where the source's version is gone, StorageError
        and EngineError.
        """
