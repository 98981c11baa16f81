"""Runs the last iteration of a job that ends with its target: the target is deleted, with what is stored beside it."""

from __future__ import annotations

from iscp.core.job.iteration import Iteration, JobOutcome
from iscp.core.values.errors import PermanentError
from iscp.ports.sink import DeletionOrder
from iscp.ports.system import Guard
from iscp.runtime.iteration.iteration_ports import IterationPorts

STRATEGY = "deletion"
"""The strategy that the history has of it."""


class TargetRemover:
    """Deletes the target of an iteration's one job."""

    def __init__(self, ports: IterationPorts) -> None:
        self._ports = ports

    def remove(self, iteration: Iteration, guard: Guard) -> JobOutcome:
        """Delete the target, and return the outcome, whose warning says what is left in its directory.

        Raises Conflict; InvalidRequest if the account may have no table there any more; PermanentError if the target is
        not the job's alone.
        """
        ports, (row,) = self._ports, iteration.jobs
        ports.require_places(row)
        kind = ports.kinds(row.spec.consumer.kind)
        if kind.delete_target is None:
            raise PermanentError(f"a consumer {kind.name} deletes no target", remedy="Unregister the job without it")
        deleted = kind.delete_target(DeletionOrder(row, ports.epoch(), guard), ports.environment)
        return JobOutcome(
            row=row,
            watermark=row.watermark,
            seq=max(row.seq, deleted.seq),
            from_version=row.watermark.version,
            warning=f"left where the target was: {'; '.join(deleted.left)}" if deleted.left else "",
            strategy=STRATEGY,
            strategy_reason="; ".join(deleted.left),
        )
