"""Jobs as users see them: the owner's rows, with what its loop knows of their sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from iscp.coordination.protocol.messages import SourceSeen
from iscp.coordination.schedule.schedule_state import ScheduleTimes
from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import JobRow, JobState
from iscp.core.job.maintenance_figures import NO_MAINTENANCE, JobMaintenance, summed
from iscp.core.job.several_tables import further_tables
from iscp.core.job.start_rule import run_spec
from iscp.core.settings.config import ProbeConfig
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.ids import ShardId
from iscp.core.values.progress import RunProgress, combined_progress
from iscp.ports.consumer import ConsumerKind
from iscp.ports.system import Clock
from iscp.runtime.admin.target_figures import NO_FIGURES, TargetFigures
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop


class JobViews:
    """Between terms they are as of the end of the last one. `probe`: how often nodes probe tables. `figures` reads
    those of a job's target, and `retained_s` says for how long its sources retain what was removed.
    """

    def __init__(
        self,
        owner: OwnerLoop,
        nodes: NodeClients,
        kinds: Callable[[str], ConsumerKind],
        clock: Clock,
        probe: ProbeConfig,
        figures: Callable[[JobRow], TargetFigures] = lambda row: NO_FIGURES,
        retained_s: Callable[[JobRow], float] = lambda row: 0.0,
    ) -> None:
        self._owner = owner
        self._nodes = nodes
        self._kinds = kinds
        self._clock = clock
        self._silent_max_s = silent_max_s(probe)
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
        view = view_of(row, seen, node_id, self._silent_max_s, self._clock.now_s())
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


def view_of(row: JobRow, seen: SourceSeen | None, node_id: str, silent_s: float, now_s: float) -> JobView:
    """Return the view of a job whose table `node_id` runs (empty: no node), and was `seen` to be so.

    `silent_s`: for so long nothing need be heard of a table that does not move.
    """
    lag_s = lag_of(row, seen, silent_s if node_id else 0.0, now_s)
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
        lag_s=lag_s,
        seq=row.seq,
        status=row.status,
        create_at_s=row.create_at_s,
        node_id=node_id,
        late=is_late(row, lag_s, now_s),
    )


def is_late(row: JobRow, lag_s: float, now_s: float) -> bool:
    """Return whether the job lags by more than its target lag, or has not built its target within it."""
    try:
        spec = run_spec(row.spec_json)
    except InvalidRequest:  # damaged in the job log: its iterations say so, and its place in a list is not theirs
        return False
    if spec is None or spec.target_lag_s is None:
        return False
    return (lag_s if row.watermark.version >= 0 else now_s - row.create_at_s) > spec.target_lag_s


def silent_max_s(probe: ProbeConfig) -> float:
    """Return for how many seconds at most nothing is heard of a table that does not move, if its node can probe it."""
    return probe.interval_max_s + probe.timeout_s + ScheduleTimes().seen_every_s


def lag_of(row: JobRow, seen: SourceSeen | None, silent_s: float, now_s: float) -> float:
    """Return how stale the job is, in seconds; a job that is up to date with what was last seen is so as of that probe.

    A target in doubt is stale since the doubt. If the source cannot be probed, or nothing was heard of it for
    `silent_s` (0: no node has the table), the time since the last probe that succeeded is the least lag: nobody knows
    what was committed then. -1 means that the lag is not known yet.
    """
    if seen is None or not seen.checked_at_s:
        return -1.0
    since_s = now_s - seen.checked_at_s
    unseen_s = max(0.001, since_s) if seen.unreached or since_s >= silent_s else 0.0
    if doubted_at_s := row.status.doubted_at_s:
        return max(0.001, unseen_s, now_s - doubted_at_s)
    further_s = max(unseen_s, 0.0 if row.paused else _further_lag_of(row, seen, now_s))
    if row.watermark.version >= seen.source_version:
        return further_s
    # The table's own figure is of its slowest job; no job is staler than that, or than its own watermark.
    table_s = seen.lag_s + (now_s - seen.checked_at_s)
    own_s = now_s - row.watermark.at_s if row.watermark.version >= 0 else table_s
    # A paused job does not count among those of the table: only its own watermark shows how far it has fallen back.
    return max(further_s, own_s if row.paused else min(table_s, own_s))


def _further_lag_of(row: JobRow, seen: SourceSeen, now_s: float) -> float:
    """Return the lag, in seconds, behind the tables that it reads besides its own: no staler than the slowest job
    there, or than it was when it read them.
    """
    read, lag_s = set(further_tables(row)), 0.0
    for each in seen.further if read else ():
        mark = row.sources.get(each.uri)
        if each.uri in read and mark is not None and mark.watermark.version < each.version:
            table_s = each.lag_s + (now_s - seen.checked_at_s)
            lag_s = max(lag_s, 0.001, min(table_s, now_s - mark.watermark.at_s))
    return lag_s


def _probed(loop: OwnerLoop, shards: Sequence[ShardId]) -> tuple[str, SourceSeen | None]:
    """Return who runs a table (all nodes of several ranges; nobody, if one has no node), and what the table was seen to
    be.

    If there are several probes, the one that leaves most open counts.
    """
    assignments = [loop.machine.assignments.get(shard) for shard in shards]
    nodes = [each.holder.node_id if each and each.holder else "" for each in assignments]
    probes = [seen for shard in shards if (seen := loop.sources.seen.get(shard)) is not None]
    seen = max(probes, key=lambda at: (at.lag_s > 0 or at.unreached, at.lag_s - at.checked_at_s), default=None)
    return ",".join(sorted(set(nodes))) if all(nodes) else "", seen if len(probes) == len(shards) else None
