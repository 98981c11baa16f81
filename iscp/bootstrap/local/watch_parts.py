"""Compose a node's schedule for a process that has no node."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from iscp.adapters.delta.log.directory_notices import DirectoryNotices
from iscp.adapters.delta.sessions.spark_access import SparkAccess
from iscp.adapters.delta.source.commit_probe import DeltaProbe
from iscp.adapters.system.trigger_registry import TriggerRegistry
from iscp.bootstrap.iteration_parts import TableAccess
from iscp.coordination.schedule.schedule_events import JobCommitted
from iscp.coordination.schedule.schedule_machine import Schedule
from iscp.core.job.iteration import JobOutcome
from iscp.core.settings.config import NodeConfig
from iscp.ports.consumer import ConsumerKind
from iscp.runtime.iteration.iteration_ports import IterationPorts
from iscp.runtime.local.job_registrar import JobRegistrar
from iscp.runtime.local.local_watch import WatchParts
from iscp.runtime.local.spark_needs import SparkNeeds
from iscp.runtime.worker.executor import Executor
from iscp.runtime.worker.maintenance import Maintenance
from iscp.runtime.worker.runner import Runner
from iscp.runtime.worker.scheduler import Scheduler
from iscp.runtime.worker.table_notices import TableNotices

log = logging.getLogger(__name__)


def compose_watch(
    config: NodeConfig,
    spark: SparkAccess,
    tables: TableAccess,
    ports: IterationPorts,
    registrar: JobRegistrar,
    kinds: Callable[[str], ConsumerKind],
) -> WatchParts:
    """Compose what keeps jobs fresh; an invariant that breaks ends it."""
    clock, broken = ports.clock, threading.Event()
    needs = SparkNeeds(clock)

    def end(error: Exception) -> None:
        log.critical("watch.broken", extra={"error": str(error)})
        broken.set()

    def commit(outcome: JobOutcome) -> None:
        needs.hear(outcome)
        scheduler.post(JobCommitted(outcome))

    schedule = Schedule(
        config.node_id,
        config.probe,
        config.backoff,
        random.random,
        evaluate_trigger=TriggerRegistry(config.triggers.allow).evaluate,
    )
    scheduler = Scheduler(schedule, DeltaProbe(), tables.target_probes(kinds), clock, end)
    runner = Runner(ports, config.bounds, on_committed=commit)
    executor = Executor(
        runner,
        clock,
        config.scheduler,
        lease_check=lambda epoch: None,
        emit=scheduler.post,
        on_stuck=lambda iteration: spark.kill(),
    )
    maintenance = Maintenance(
        kinds,
        clock,
        config.upkeep,
        config.backoff,
        random.random,
        lease_check=lambda: None,
        on_broken=end,
    )
    return WatchParts(
        registrar,
        scheduler,
        executor,
        maintenance,
        TableNotices(DirectoryNotices, lambda shard: scheduler.notify(shard, targets=False)),
        lambda: not broken.is_set() and spark.alive(),
        runner.progress,
        needs,
    )
