"""Records what a node builds: each range of a table that it stages, and the commits that it retains meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.core.build.build_task import RangeBatch, StagingBatch
from iscp.core.values.progress import TableSize
from iscp.ports.range_builder import RangeBuilder
from iscp.ports.system import Guard
from iscp.ports.tracing import Attribute, Tracer


class TracedRangeBuilder:
    """Port RangeBuilder, around another one. A build outlives every iteration: each task has a trace of its own."""

    def __init__(self, builder: RangeBuilder, tracer: Tracer) -> None:
        self._builder = builder
        self._tracer = tracer

    def build(self, batch: RangeBatch | StagingBatch, guard: Guard) -> TableSize:
        name = "iscp.build.range" if isinstance(batch, RangeBatch) else "iscp.build.retain"
        with self._tracer.span(name, _attributes(batch), parent="") as span:
            size = self._builder.build(batch, guard)
            span.note({"iscp.rows": size.rows, "iscp.bytes": size.bytes})
            return size

    def cancel(self, guard: Guard) -> None:
        self._builder.cancel(guard)


def _attributes(batch: RangeBatch | StagingBatch) -> Mapping[str, Attribute]:
    jobs: dict[str, Attribute] = {"iscp.jobs": len(batch.plans)}
    if isinstance(batch, StagingBatch):
        task = batch.task
        return {"iscp.table": task.table_uri, "iscp.version.from": task.after, "iscp.version": task.until, **jobs}
    plan = batch.plans[0]
    read: dict[str, Attribute] = {"iscp.table": plan.table_uri, "iscp.version": plan.version}
    return {**read, "iscp.range": batch.range_id, "iscp.account": plan.account, "iscp.job": plan.job_name, **jobs}
