"""Jobs as users see them: the owner's rows, with what its loop knows of their sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from iscp.coordination.lag import lag_of
from iscp.coordination.protocol.messages import SourceSeen
from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import JobRow, JobState
from iscp.core.job.maintenance_figures import NO_MAINTENANCE, JobMaintenance, summed
from iscp.core.job.start_rule import run_spec
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.ids import ShardId
from iscp.core.values.progress import RunProgress, combined_progress
from iscp.ports.consumer import ConsumerKind
from iscp.ports.system import Clock
from iscp.runtime.admin.target_figures import NO_FIGURES, TargetFigures
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop


class JobViews:
    """Between terms they are as of the end of the last one. `figures` reads
    those of a job's target, and `retained_s` says for how long its sources retain what was removed.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        nodes: NodeClients,
        kinds: Callable[[str], ConsumerKind],
        clock: Clock,
        figures: Callable[[JobRow], TargetFigures] = lambda row: NO_FIGURES,
        retained_s: Callable[[JobRow], float] = lambda row: 0.0,
    ) -> None:
        self._owner = owner
        self._nodes = nodes
        self._kinds = kinds
        self._clock = clock
        self._figures = figures
        self._retained_s = retained_s

    def in_full(self, row: JobRow) -> JobView:
        """Return the job's view with what only the nodes that run it know, and with the figures of its target."""
        figures = self._figures(row)
        return replace(
            self.of([row])[0],
            upkeep=self._maintenance(row),
            progress=self._progress(row),
            figures=figures.values,
            figures_fault=figures.fault,
        )

    def of(self, rows: Sequence[JobRow]) -> list[JobView]:
        writer = self._owner.current_writer()
        tables = {row.key.table_id for row in rows}
        shards = writer.read(lambda book: {each: book.ranges(each) for each in tables})

        def read(loop: OwnerLoop) -> dict[str, tuple[str, SourceSeen | None]]:
            return {each: _probed(loop, [ShardId(each, n) for n in shards[each]]) for each in tables}

        known = self._owner.query(read)
        return [self._view(row, len(shards[row.key.table_id]), *known[row.key.table_id]) for row in rows]

    def _view(self, row: JobRow, ranges: int, node_id: str, seen: SourceSeen | None) -> JobView:
        view = view_of(row, seen, node_id, self._clock.now_s())
        return replace(view, ranges=ranges, retained_s=self._retained_s(row))

    def _progress(self, row: JobRow) -> RunProgress | None:
        """Queried of nodes only where an iteration was reported to run, which takes a while, or a comparison."""
        rows = self._owner.current_writer().read(lambda book: book.rows_of(row.key))
        running = [each for each in rows if each.state is JobState.RUNNING or self._nodes.verifying(each.job_id)]
        found = self._nodes.of_each(lambda each: self._nodes.progress(each.key.shard, each.job_id), running)
        return combined_progress(list(filter(None, found)))

    def _maintenance(self, row: JobRow) -> JobMaintenance:
        """Return what the nodes that run it report; they are queried only if the job's consumer has any maintenance."""
        try:
            kind = self._kinds(row.spec.consumer.kind)
        except InvalidRequest:  # the job's own status says it
            return NO_MAINTENANCE
        if kind.refresh is None and kind.purge is None:
            return NO_MAINTENANCE
        rows = self._owner.current_writer().read(lambda book: book.rows_of(row.key))
        reported = self._nodes.of_each(lambda each: self._nodes.maintenance(each.key.shard, each.job_id), rows)
        refreshes, purges = [each.refresh for each in reported], [each.purge for each in reported]
        return JobMaintenance(summed(list(filter(None, refreshes))), summed(list(filter(None, purges))))


def view_of(row: JobRow, seen: SourceSeen | None, node_id: str, now_s: float) -> JobView:
    """Return the view of a job whose table `node_id` runs (empty: no node), and was `seen` to be so."""
    lag = lag_of(row, seen, now_s)
    return JobView(
        account=row.key.account,
        table_id=row.key.table_id,
        table=row.table_name,
        name=row.key.job_name,
        job_id=row.job_id,
        spec_json=row.spec_json,
        state=row.state,
        reason=row.reason,
        applied_version=row.watermark.version,
        applied_at_s=row.watermark.at_s,
        source_version=max(seen.source_version if seen else -1, row.watermark.version),
        checked_at_s=seen.checked_at_s if seen else 0.0,
        lag_s=lag.most_s,
        lag_least_s=lag.least_s,
        seq=row.seq,
        status=row.status,
        create_at_s=row.create_at_s,
        node_id=node_id,
        late=is_late(row, lag.most_s),
    )


def is_late(row: JobRow, lag_s: float) -> bool:
    """Return whether a job that lags by `lag_s` at most may lag by more than its target lag."""
    try:
        spec = run_spec(row.spec_json)
    except InvalidRequest:  # damaged in the job log: its iterations say so, and its place in a list is not theirs
        return False
    return spec is not None and spec.target_lag_s is not None and lag_s > spec.target_lag_s


def _probed(loop: OwnerLoop, shards: Sequence[ShardId]) -> tuple[str, SourceSeen | None]:
    """Return who runs a table (all nodes of several ranges; nobody, if one has no node), and what the table was seen to
    be.

    If there are several probes, the one that leaves most open counts.
    """
    assignments = [loop.machine.assignments.get(shard) for shard in shards]
    nodes = [each.holder.node_id if each and each.holder else "" for each in assignments]
    probes = [seen for shard in shards if (seen := loop.sources.dated(shard)) is not None]
    seen = max(probes, key=lambda at: (at.lag_s > 0 or at.unreached, at.lag_s - at.checked_at_s), default=None)
    return ",".join(sorted(set(nodes))) if all(nodes) else "", seen if len(probes) == len(shards) else None
