"""Compose what runs the shards that a node takes in, and probes their targets."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import get_args

from iscp.adapters.delta.sink.delta_sink import DeltaSink
from iscp.adapters.delta.sink.retained_commits import DeltaRetainedCommits
from iscp.adapters.delta.source.change_source import DeltaChangeSource
from iscp.adapters.delta.source.commit_probe import DeltaProbe
from iscp.adapters.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.adapters.delta.source.table_properties import property_setter
from iscp.adapters.delta.source.table_retention import DeltaRetentionHold
from iscp.adapters.delta.spark.spark_engine import SparkEngine
from iscp.adapters.system.trigger_registry import TriggerRegistry
from iscp.bootstrap.access_parts import compose_places
from iscp.bootstrap.foundation import Foundation
from iscp.bootstrap.self_tests import check_of_targets
from iscp.coordination.protocol.effects import ShardOrder
from iscp.coordination.protocol.events import Reports
from iscp.coordination.schedule.schedule_events import JobCommitted, VerifyAnswered, WorkerNews
from iscp.coordination.schedule.schedule_machine import Schedule
from iscp.core.api.api_views import EventView
from iscp.core.job.target_state import TargetLog
from iscp.core.values.progress import RunProgress
from iscp.index.lance.version_probe import VersionProbe
from iscp.ports.catalog import LogProbe
from iscp.ports.node_log import NodeLog
from iscp.runtime.builds.build_worker_loop import BuildWorkerLoop
from iscp.runtime.iteration.hold_placer import HoldPlacer
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.sink_pool import SINKS_CACHED_MAX, SinkPool
from iscp.runtime.metrics.history_meter import HistoryMeter
from iscp.runtime.metrics.metered_runner import MeteredRunner
from iscp.runtime.node.lease_keeper import LeaseKeeper
from iscp.runtime.worker.executor import Executor
from iscp.runtime.worker.local_calls import LocalCalls
from iscp.runtime.worker.maintenance import Maintenance, MaintenanceOrder
from iscp.runtime.worker.runner import Runner
from iscp.runtime.worker.scheduler import Scheduler
from iscp.runtime.worker.surviving_runner import SurvivingRunner
from iscp.runtime.worker.target_probe import TargetProbes
from iscp.runtime.worker.verify_requests import VerifyDesk
from iscp.runtime.worker.worker_loop import WorkerLoop

LOG_PROBES: Mapping[TargetLog, LogProbe] = {TargetLog.DELTA: DeltaProbe(), TargetLog.LANCE: VersionProbe()}
"""The probe for each kind of log that a target may have."""


@dataclass(frozen=True, slots=True)
class ShardEngine:
    """The engine of shards: `maintenance` does what kinds of consumers want done at times of their own; `progress` is a
    running job's.
    """

    scheduler: Scheduler
    executor: Executor
    maintenance: Maintenance
    desk: VerifyDesk
    progress: Callable[[str], RunProgress | None]

    @property
    def counters(self) -> Sequence[Callable[[], Mapping[str, int]]]:
        """Return what counts what the engine does."""
        return (lambda: asdict(self.executor.counters()), self.maintenance.counters, self.scheduler.pool.counters)

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
    )
    worker.orders.subscribe(scheduler.post, *get_args(ShardOrder))
    worker.orders.subscribe(maintenance.give, *get_args(MaintenanceOrder))
    return ShardEngine(
        scheduler=scheduler, executor=executor, maintenance=maintenance, desk=desk, progress=runner.progress
    )


def compose_target_probes(foundation: Foundation) -> TargetProbes:
    """Compose probes on sinks that are only probed, now and then: no place has to be tried before, and no sink is
    cached.
    """
    environment = _compose_sinks(foundation, lambda uri: uri, _compose_source(foundation), cached_max=0)
    return TargetProbes(LOG_PROBES, foundation.kinds.kind, environment)


def compose_iteration_ports(foundation: Foundation, epoch: Callable[[], int]) -> IterationPorts:
    """Compose the ports of a node's iterations, and of its part in builds: each place of targets is tried once, and
    each sink is cached once.
    """
    spark, direct_bytes_max = foundation.spark, foundation.config.spark.direct_bytes_max
    source = _compose_source(foundation)
    environment = _compose_sinks(foundation, check_of_targets(spark, foundation.tested), source)
    return IterationPorts(
        engine=SparkEngine(spark.root, spark.new_session),
        source=source,
        kinds=foundation.kinds.kind,
        environment=environment,
        clock=foundation.clock,
        failpoints=foundation.failpoints,
        epoch=epoch,
        retained=DeltaRetainedCommits(foundation.config.log.uri, source, foundation.failpoints, direct_bytes_max),
        builds=foundation.config.build,
        require_places=compose_places(foundation.config).require_job,
        deaths=foundation.deaths,
        holds=HoldPlacer(DeltaRetentionHold(source.properties, property_setter(spark.root))),
        tracer=foundation.tracing.tracer,
    )


def _compose_source(foundation: Foundation) -> DeltaChangeSource:
    root = foundation.spark.root
    return DeltaChangeSource(
        foundation.config.spark.direct_bytes_max, table_opener(root), state_loader(root), file_lister(root)
    )


def _compose_sinks(
    foundation: Foundation,
    check: Callable[[str], str],
    source: DeltaChangeSource,
    cached_max: int = SINKS_CACHED_MAX,
) -> SinkPool:
    load_state = state_loader(foundation.spark.root)
    return SinkPool(
        lambda uri: DeltaSink(uri, foundation.failpoints, load_state),
        check,
        foundation.clock,
        foundation.failpoints,
        source,
        cached_max,
    )
