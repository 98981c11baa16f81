"""What runs the shards that a node takes in, and probes what they keep."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import get_args

from iscp.adapters.delta.sink.delta_sink import DeltaSink
from iscp.adapters.delta.sink.kept_commits import DeltaKeptCommits
from iscp.adapters.delta.source.change_source import DeltaChangeSource
from iscp.adapters.delta.source.commit_probe import DeltaProbe
from iscp.adapters.delta.source.spark_read import file_lister, state_loader, table_opener
from iscp.adapters.delta.spark.spark_engine import SparkEngine
from iscp.adapters.system.trigger_registry import TriggerRegistry
from iscp.bootstrap.access_parts import compose_places
from iscp.bootstrap.foundation import Foundation
from iscp.bootstrap.self_tests import check_of_targets
from iscp.coordination.schedule.schedule_events import JobCommitted, VerifyAnswered, WorkerNews
from iscp.coordination.schedule.schedule_machine import Schedule
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.iteration.sink_pool import SinkPool
from iscp.runtime.node.lease_keeper import LeaseKeeper
from iscp.runtime.worker.executor import Executor
from iscp.runtime.worker.local_calls import LocalCalls
from iscp.runtime.worker.maintenance import Upkeep
from iscp.runtime.worker.runner import Runner
from iscp.runtime.worker.scheduler import Scheduler
from iscp.runtime.worker.surviving_runner import SurvivingRunner
from iscp.runtime.worker.target_probe import TargetProbes
from iscp.runtime.worker.verify_requests import VerifyDesk
from iscp.runtime.worker.worker_loop import WorkerLoop


def compose_engine(
    on: Foundation, ports: IterationPorts, probes: TargetProbes, keeper: LeaseKeeper, worker: WorkerLoop
) -> tuple[Scheduler, Executor, Upkeep, LocalCalls]:
    """With what answers for it, and the upkeep that kinds of consumers want."""
    config, clock, spark = on.config, on.clock, on.spark
    triggers = TriggerRegistry(config.triggers.allow)
    desk = VerifyDesk(lambda event: scheduler.request(event), clock)
    schedule = Schedule(config.node_id, config.probe, config.backoff, random.random, evaluate_trigger=triggers.evaluate)
    scheduler = Scheduler(schedule, DeltaProbe(), probes, clock, on.on_broken)
    scheduler.reports.subscribe(worker.report, *get_args(WorkerNews))
    scheduler.reports.subscribe(desk.answer, VerifyAnswered)
    runner = Runner(ports, config.bounds, on_committed=lambda outcome: scheduler.post(JobCommitted(outcome)))
    executor = Executor(
        SurvivingRunner(runner, on.deaths),
        clock,
        config.scheduler,
        lease_check=keeper.check,
        emit=scheduler.post,
        on_stuck=lambda iteration: spark.kill(),
    )
    held = lambda: keeper.check(keeper.epoch)  # noqa: E731
    upkeep = Upkeep(on.kinds.kind, clock, config.upkeep, config.backoff, random.random, held, on.on_broken)
    here = LocalCalls(scheduler, executor, desk, upkeep, runner.progress, on.node_log)
    return scheduler, executor, upkeep, here


def compose_target_probes(on: Foundation) -> TargetProbes:
    """On sinks that are only probed, now and then: no place has to be tried before, and none is kept."""
    return TargetProbes(
        DeltaProbe(), on.kinds.kind, _compose_sinks(on, lambda uri: uri, _compose_source(on), kept_max=0)
    )


def compose_iteration_ports(on: Foundation, epoch: Callable[[], int]) -> IterationPorts:
    """For a node's iterations, and its part in builds: each place of targets is tried once, and each sink kept once."""
    spark, held = on.spark, on.config.spark.direct_bytes_max
    source = _compose_source(on)
    environment = _compose_sinks(on, check_of_targets(spark, on.tested), source)
    return IterationPorts(
        engine=SparkEngine(spark.root, spark.new_session),
        source=source,
        kinds=on.kinds.kind,
        environment=environment,
        clock=on.clock,
        failpoints=on.failpoints,
        epoch=epoch,
        kept=DeltaKeptCommits(on.config.log.uri, source, on.failpoints, held),
        builds=on.config.build,
        require_places=compose_places(on.config).require_job,
        deaths=on.deaths,
    )


def _compose_source(on: Foundation) -> DeltaChangeSource:
    root = on.spark.root
    return DeltaChangeSource(
        on.config.spark.direct_bytes_max, table_opener(root), state_loader(root), file_lister(root)
    )


def _compose_sinks(on: Foundation, check: Callable[[str], str], source: DeltaChangeSource, **kept: int) -> SinkPool:
    load_state = state_loader(on.spark.root)
    return SinkPool(
        lambda uri: DeltaSink(uri, on.failpoints, load_state), check, on.clock, on.failpoints, source, **kept
    )
