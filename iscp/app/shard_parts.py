"""Compose what runs the shards that a node takes in, and probes their targets."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

from iscp.app.foundation import Foundation, compose_places
from iscp.app.registry import TriggerRegistry
from iscp.app.table_access import TableAccess, check_of_targets
from iscp.cluster.builds.builder_loop import BuildWorkerLoop
from iscp.cluster.metering import HistoryMeter, MeteredRunner
from iscp.cluster.node import LeaseKeeper
from iscp.cluster.worker_loop import LocalCalls, VerifyDesk, WorkerLoop
from iscp.delta.log.directory_notices import DirectoryNotices
from iscp.delta.sink.staging import DeltaRetainedCommits
from iscp.delta.source.change_source import DeltaProbe
from iscp.engine.iteration_ports import HoldPlacer, IterationPorts
from iscp.model.api.api_requests import EventView
from iscp.model.job.start_rule import TargetLog
from iscp.model.protocol.events import Reports, ShardOrder
from iscp.model.values.progress import RunProgress
from iscp.ports.consumer import ConsumerKind
from iscp.ports.engine import NodeLog
from iscp.ports.source import LogProbe
from iscp.schedule.executor import Executor
from iscp.schedule.maintenance import Maintenance, MaintenanceOrder
from iscp.schedule.probe_pool import TargetProbes
from iscp.schedule.runner import Runner, SurvivingRunner
from iscp.schedule.schedule_events import JobCommitted, VerifyAnswered, WorkerNews
from iscp.schedule.schedule_machine import Schedule
from iscp.schedule.scheduler import NoticeOrder, Scheduler, TableNotices
from iscp.storage.dataset_manifest import VersionProbe

LOG_PROBES: Mapping[TargetLog, LogProbe] = {TargetLog.DELTA: DeltaProbe(), TargetLog.LANCE: VersionProbe()}
"""The probe for each kind of log that a target may have."""


@dataclass(frozen=True, slots=True)
class ShardEngine:
    """The engine of shards: `maintenance` does what kinds of consumers want done at times of their own; `progress` is a
    running job's; `notices` wakes the jobs of tables that have changed.
    """

    scheduler: Scheduler
    executor: Executor
    maintenance: Maintenance
    desk: VerifyDesk
    progress: Callable[[str], RunProgress | None]
    notices: TableNotices

    @property
    def counters(self) -> Sequence[Callable[[], Mapping[str, int]]]:
        """Return what counts what the engine does."""
        pool, notices = self.scheduler.pool, self.notices
        return lambda: asdict(self.executor.counters()), self.maintenance.counters, pool.counters, notices.counters

    def answer_calls(
        self,
        node_log: NodeLog,
        build_worker: BuildWorkerLoop,
        former_events: Callable[[Sequence[int]], list[EventView]],
        counts: Callable[[], dict[str, int]],
    ) -> LocalCalls:
        """Return what answers the owner's calls to this node."""
        return LocalCalls(
            scheduler=self.scheduler,
            desk=self.desk,
            maintenance=self.maintenance,
            progress=self.progress,
            node_log=node_log,
            build_worker=build_worker,
            former_events=former_events,
            counts=counts,
        )


def compose_engine(
    foundation: Foundation, ports: IterationPorts, probes: TargetProbes, keeper: LeaseKeeper, worker: WorkerLoop
) -> ShardEngine:
    config, clock = foundation.config, foundation.clock
    desk = VerifyDesk(lambda event: scheduler.request(event), clock)
    schedule = Schedule(
        config.node_id,
        config.probe,
        config.backoff,
        random.random,
        evaluate_trigger=TriggerRegistry(config.triggers.allow).evaluate,
    )
    tracing = foundation.tracing
    scheduler = Scheduler(schedule, DeltaProbe(), probes, clock, foundation.on_broken, noticed=tracing.noticed(clock))
    scheduler.reports.subscribe(worker.report, *get_args(WorkerNews))
    scheduler.reports.subscribe(desk.answer, VerifyAnswered)
    if config.metrics.used:
        scheduler.reports.subscribe(HistoryMeter(foundation.meter).take, Reports)
    runner = Runner(ports, config.bounds, on_committed=lambda outcome: scheduler.post(JobCommitted(outcome)))
    surviving = SurvivingRunner(runner, foundation.deaths)
    metered = MeteredRunner(surviving, foundation.meter, clock) if config.metrics.used else surviving
    executor = Executor(
        tracing.traced(foundation.lineage.observed(metered, clock)),
        clock,
        config.scheduler,
        lease_check=keeper.check,
        emit=scheduler.post,
        on_stuck=lambda iteration: foundation.spark.kill(),
    )
    maintenance = Maintenance(
        foundation.kinds.kind,
        clock,
        config.upkeep,
        config.backoff,
        random.random,
        lease_check=lambda: keeper.check(keeper.epoch),
        on_broken=foundation.on_broken,
        tracer=tracing.tracer,
    )
    worker.orders.subscribe(scheduler.post, *get_args(ShardOrder))
    worker.orders.subscribe(maintenance.give, *get_args(MaintenanceOrder))
    notices = TableNotices(DirectoryNotices, lambda shard: scheduler.notify(shard, targets=False))
    worker.orders.subscribe(notices.give, *get_args(NoticeOrder))
    return ShardEngine(
        scheduler=scheduler,
        executor=executor,
        maintenance=maintenance,
        desk=desk,
        progress=runner.progress,
        notices=notices,
    )


def target_probes(tables: TableAccess, kinds: Callable[[str], ConsumerKind]) -> TargetProbes:
    """Return probes on sinks that are only probed, now and then: no place has to be tried before, and no sink is
    cached.
    """
    return TargetProbes(LOG_PROBES, kinds, tables.sinks(tables.source(), lambda uri: uri, cached_max=0))


def compose_target_probes(foundation: Foundation) -> TargetProbes:
    return target_probes(_table_access(foundation), foundation.kinds.kind)


def compose_iteration_ports(foundation: Foundation, epoch: Callable[[], int]) -> IterationPorts:
    """Compose the ports of a node's iterations, and of its part in builds: each place of targets is tried once, and
    each sink is cached once.
    """
    config, spark, tables = foundation.config, foundation.spark, _table_access(foundation)
    source = tables.source()
    return IterationPorts(
        engine=tables.engine(),
        source=source,
        kinds=foundation.kinds.kind,
        environment=tables.sinks(source, check_of_targets(spark, foundation.tested)),
        clock=foundation.clock,
        failpoints=foundation.failpoints,
        epoch=epoch,
        retained=DeltaRetainedCommits(config.log.uri, source, foundation.failpoints, config.spark.direct_bytes_max),
        builds=config.build,
        require_places=compose_places(config).require_job,
        deaths=foundation.deaths,
        holds=HoldPlacer(tables.holds(source)),
        tracer=foundation.tracing.tracer,
    )


def _table_access(foundation: Foundation) -> TableAccess:
    direct_bytes_max = foundation.config.spark.direct_bytes_max
    return TableAccess(foundation.spark, foundation.clock, foundation.failpoints, direct_bytes_max)
