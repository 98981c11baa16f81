"""The composition root: the one place that knows which adapter stands behind which port."""

from __future__ import annotations

import logging
import os
import random
import signal
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from iscp import __version__
from iscp.adapters.clock import SystemClock
from iscp.adapters.delta.catalog import DeltaCatalog
from iscp.adapters.delta.commits import place
from iscp.adapters.delta.engine import SparkEngine
from iscp.adapters.delta.joblog import DeltaJobLog
from iscp.adapters.delta.probe import DeltaProbe
from iscp.adapters.delta.s3 import s3_environ
from iscp.adapters.delta.selftest import kind_of, self_test
from iscp.adapters.delta.session import SparkRuntime, SparkSettings
from iscp.adapters.delta.sink import DeltaSink
from iscp.adapters.delta.source import DeltaChangeSource
from iscp.adapters.delta.spark_read import table_opener
from iscp.adapters.etcd.checkpoint import EtcdCheckpoint
from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.election import EtcdElection
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.log_marks import EtcdLogMarks
from iscp.adapters.etcd.membership import EtcdMembership
from iscp.adapters.etcd.overrides import EtcdOverrides
from iscp.adapters.etcd.server import production_warning
from iscp.adapters.etcd.values import EtcdSettings
from iscp.adapters.failpoints import EnvironmentFailpoints
from iscp.adapters.grpc.forward import Forwarding
from iscp.adapters.grpc.node_server import NodeServer
from iscp.adapters.grpc.operator_server import OperatorServer
from iscp.adapters.grpc.peers import Peers
from iscp.adapters.grpc.server import AdminServer
from iscp.adapters.preflight import refuse_misfit
from iscp.adapters.triggers import TriggerRegistry
from iscp.consumers.registry import ConsumerRegistry
from iscp.coordination.messages import OwnerMessage
from iscp.coordination.owner import OwnerMachine
from iscp.coordination.schedule import Schedule
from iscp.coordination.schedule_events import JobCommitted
from iscp.coordination.times import CoordinationTimes
from iscp.coordination.worker import WorkerMachine
from iscp.core.cluster import NodeRecord
from iscp.core.config import NodeConfig
from iscp.ports.system import Failpoints
from iscp.runtime.admin_service import OwnerAdmin
from iscp.runtime.adopter import Adopter
from iscp.runtime.cluster_views import ClusterViews
from iscp.runtime.executor import Executor
from iscp.runtime.garbage import collect_rarely
from iscp.runtime.lease_keeper import LeaseKeeper
from iscp.runtime.local_calls import LocalCalls
from iscp.runtime.log_writer import LogLimits
from iscp.runtime.moved import Moved
from iscp.runtime.node import Node
from iscp.runtime.nodes_at_work import NodesAtWork
from iscp.runtime.operator_service import OwnerOperator
from iscp.runtime.owner_loop import OwnerLoop
from iscp.runtime.resharder import Resharder
from iscp.runtime.runner import Runner
from iscp.runtime.scheduler import Scheduler
from iscp.runtime.sinks import SinkPool
from iscp.runtime.target_looks import TargetLooks, WaitedTargets
from iscp.runtime.upkeep import Upkeep
from iscp.runtime.verifier import Verifier
from iscp.runtime.verify_desk import VerifyDesk
from iscp.runtime.worker_loop import WorkerLoop

log = logging.getLogger(__name__)

JVM_LOOK_S = 0.5
KILL_AFTER_S = 8.0
"""Beyond the time that an orderly stop may take: then the process ends as it stands."""


def run_node(config: NodeConfig) -> int:
    """Run one node until SIGTERM or SIGINT; the exit status (1: it could not go on and wants to be restarted)."""
    stop = threading.Event()
    broken = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def on_broken(error: Exception) -> None:
        log.critical("node.broken", extra={"error": str(error)})
        broken.set()
        stop.set()

    with tempfile.TemporaryDirectory(prefix="iscp-") as scratch:
        work_dir = Path(config.data_dir or scratch)
        os.environ.update(s3_environ(config.storage.s3))  # before the JVM and other children: they inherit it
        spark = SparkRuntime.start(_spark_settings(config, work_dir))
        try:
            tested = _tested_at_start(config, spark)
            node = compose(config, spark, EnvironmentFailpoints(), on_broken, tested)
            collect_rarely()
            try:
                node.start(stop)
            except BaseException:
                _exit_after(KILL_AFTER_S)
                node.stop(0.0)
                raise
            while not stop.wait(JVM_LOOK_S):
                if not spark.alive():
                    on_broken(RuntimeError("Spark's JVM has ended"))
            _exit_after(config.stop_timeout_s + KILL_AFTER_S)
            node.stop(0.0 if broken.is_set() else config.stop_timeout_s)
        finally:
            spark.stop()
    return 1 if broken.is_set() else 0


def compose(
    config: NodeConfig,
    spark: SparkRuntime,
    failpoints: Failpoints,
    on_broken: Callable[[Exception], None],
    tested: Collection[str],
) -> Node:
    """A node on its adapters, not started. `tested` are the kinds of places where the self-test has passed."""
    clock, kinds, moved = SystemClock(), _kinds(config), Moved()
    cluster = _cluster(config, clock)
    times = replace(CoordinationTimes(), ttl_s=config.etcd.lease_ttl_s, margin_s=config.etcd.margin_s)
    record = NodeRecord(config.node_id, 0, config.address, os.getpid(), __version__, clock.now_s())
    peers = Peers(config.etcd_prefix, config.node_id, lambda node_id, messages: owner.heard(node_id, messages))
    owner = _owner_loop(
        config,
        cluster,
        times,
        clock,
        failpoints,
        moved,
        lambda to, message: worker.heard([message]) if to.node_id == config.node_id else peers.send(to, message),
        peers.keep,
        on_broken,
    )
    worker = WorkerLoop(
        lambda epoch: WorkerMachine(config.node_id, epoch, __version__, times),
        lambda: upkeep,
        cluster.election,
        clock,
        send=lambda owner_id, message: (
            owner.heard(config.node_id, [message]) if owner_id == config.node_id else served.send(owner_id, message)
        ),
        on_broken=on_broken,
    )
    keeper = LeaseKeeper(cluster.membership, record, clock, worker.lease_lost, worker.lease_regained, on_broken)
    engine = _engine(config, spark, clock, kinds, failpoints, tested, keeper, worker, on_broken)
    scheduler, executor, upkeep, here = engine
    served = NodeServer(config.node_id, lambda: keeper.epoch, config.etcd_prefix, __version__, here, worker.heard)
    here.borders = (worker, peers, served, owner)
    nodes = NodesAtWork(owner, lambda to: here if to.node_id == config.node_id else peers.call(to))
    forwarding = Forwarding(lambda: owner.address_of(worker.owner_id, config.node_id))
    admin, operator = _services(config, spark, clock, kinds, failpoints, moved, owner, nodes, cluster)
    server = AdminServer(admin, config.listen, services=[served, operator], interceptors=[forwarding])
    parts = (keeper, owner, worker, scheduler, executor, moved, upkeep)
    preflight = partial(refuse_misfit, config, record, cluster.membership)
    ends = nodes, peers, forwarding, cluster.etcd
    return Node(config.node_id, server, cluster.membership, cluster.election, *parts, ends, preflight)


def _owner_loop(
    config: NodeConfig,
    cluster: _Cluster,
    times: CoordinationTimes,
    clock: SystemClock,
    failpoints: Failpoints,
    moved: Moved,
    send: Callable[[NodeRecord, OwnerMessage], None],
    keep: Callable[[Sequence[NodeRecord]], None],
    on_broken: Callable[[Exception], None],
) -> OwnerLoop:
    marks = EtcdLogMarks(cluster.etcd, cluster.election, Keys(config.etcd_prefix))
    return OwnerLoop(
        OwnerMachine(config.node_id, __version__, times),
        lambda: DeltaJobLog(config.log.uri, clock, failpoints, cluster=config.cluster, reached=marks.load),
        cluster.membership,
        cluster.election,
        cluster.overrides,
        EtcdCheckpoint(cluster.etcd, cluster.election, Keys(config.etcd_prefix)),
        marks,
        clock,
        _log_limits(config),
        send,
        keep,
        on_moved=moved.tell,
        on_broken=on_broken,
    )


def _engine(
    config: NodeConfig,
    spark: SparkRuntime,
    clock: SystemClock,
    kinds: ConsumerRegistry,
    failpoints: Failpoints,
    tested: Collection[str],
    keeper: LeaseKeeper,
    worker: WorkerLoop,
    on_broken: Callable[[Exception], None],
) -> tuple[Scheduler, Executor, Upkeep, LocalCalls]:
    """What runs the shards that the worker takes in, and answers for them."""
    triggers = TriggerRegistry(config.triggers.allow)
    desk = VerifyDesk(lambda event: scheduler.give(event), clock)
    schedule = Schedule(config.node_id, config.probe, config.backoff, random.random, ask_trigger=triggers.ask)
    looks = _target_looks(kinds, clock, failpoints)
    scheduler = Scheduler(schedule, DeltaProbe(), looks, clock, worker.news, on_broken, answered=desk.answered)
    executor = Executor(
        _runner(config, spark, clock, kinds, failpoints, lambda: keeper.epoch, tested, scheduler),
        clock,
        config.scheduler,
        lease_check=keeper.check,
        emit=scheduler.give,
        on_stuck=lambda iteration: spark.kill(),
    )
    waits = config.upkeep, config.backoff, random.random
    upkeep = Upkeep(kinds.kind, clock, *waits, lambda: keeper.check(keeper.epoch), scheduler.give, on_broken)
    return scheduler, executor, upkeep, LocalCalls(scheduler, executor, desk, upkeep)


def _services(
    config: NodeConfig,
    spark: SparkRuntime,
    clock: SystemClock,
    kinds: ConsumerRegistry,
    failpoints: Failpoints,
    moved: Moved,
    owner: OwnerLoop,
    nodes: NodesAtWork,
    cluster: _Cluster,
) -> tuple[OwnerAdmin, OperatorServer]:
    """What users and operators ask, as the owner answers it."""
    catalog = DeltaCatalog.of(spark.root, s3=config.storage.s3.used)
    check_trigger = TriggerRegistry(config.triggers.allow).check
    views = ClusterViews(owner, cluster.membership, nodes, clock)
    waited = WaitedTargets(_target_looks(kinds, clock, failpoints))
    admin = OwnerAdmin(owner, catalog, kinds.kind, check_trigger, clock, moved, nodes, views.view, waited.fault)
    resharder = Resharder(owner, catalog, kinds.kind, admin.intake)
    return admin, OperatorServer(OwnerOperator(owner, cluster.overrides, catalog, resharder))


def _target_looks(kinds: ConsumerRegistry, clock: SystemClock, failpoints: Failpoints) -> TargetLooks:
    """On sinks that are only looked at, now and then: no place has to be tried before, and none is kept."""
    return TargetLooks(DeltaProbe(), kinds.kind, _sinks(lambda uri: uri, clock, failpoints, kept_max=0))


def _sinks(check: Callable[[str], str], clock: SystemClock, failpoints: Failpoints, **kept: int) -> SinkPool:
    return SinkPool(lambda uri: DeltaSink(uri, failpoints), check, clock, failpoints, **kept)


def _kinds(config: NodeConfig) -> ConsumerRegistry:
    kinds = ConsumerRegistry(config.consumers.allow)
    if kinds.absent:
        log.warning("consumers.not_installed", extra={"names": ", ".join(kinds.absent)})
    return kinds


@dataclass(frozen=True, slots=True)
class _Cluster:
    """What the nodes of a cluster share in etcd."""

    etcd: EtcdClient
    membership: EtcdMembership
    election: EtcdElection
    overrides: EtcdOverrides


def _cluster(config: NodeConfig, clock: SystemClock) -> _Cluster:
    etcd = EtcdClient(EtcdSettings.of(config.etcd), clock)
    if warning := production_warning(etcd.status().version):
        log.warning("etcd.version", extra={"warning": warning})
    keys, ttl_s, margin_s = Keys(config.etcd_prefix), config.etcd.lease_ttl_s, config.etcd.margin_s
    election = EtcdElection(etcd, keys, clock, ttl_s=ttl_s, margin_s=margin_s)
    membership = EtcdMembership(etcd, keys, clock, ttl_s=ttl_s, margin_s=margin_s)
    return _Cluster(etcd, membership, election, EtcdOverrides(etcd, election, keys))


def _runner(
    config: NodeConfig,
    spark: SparkRuntime,
    clock: SystemClock,
    kinds: ConsumerRegistry,
    failpoints: Failpoints,
    epoch: Callable[[], int],
    tested: Collection[str],
    scheduler: Scheduler,
) -> Adopter:
    engine = SparkEngine(spark.root, spark.new_session)
    source = DeltaChangeSource(config.spark.direct_bytes_max, table_opener(spark.root))
    sinks = _sinks(_self_test(spark, tested), clock, failpoints)
    runner = Runner(
        engine,
        source,
        kinds.kind,
        sinks,
        clock,
        failpoints,
        config.bounds,
        epoch,
        on_committed=lambda outcome: scheduler.give(JobCommitted(outcome)),
    )
    return Adopter(runner, Verifier(runner, engine, source, sinks, clock, epoch), engine, source, sinks, clock, epoch)


def _tested_at_start(config: NodeConfig, spark: SparkRuntime) -> set[str]:
    """The kinds of places where the self-test has passed; raises where it does not, so that the node does not start."""
    below = {"log.uri": config.log.uri, **{f"storage.self_test.{n}": u for n, u in enumerate(config.storage.self_test)}}
    passed: set[str] = set()
    for field, uri in below.items():
        table = f"{place(uri)}/table"
        if kind_of(table) not in passed:
            report = self_test(spark.root, table, field=field)
            log.info("selftest.passed", extra={"beside": report.directory, "took_s": report.took_s})
            passed.add(kind_of(table))
    return passed


def _self_test(spark: SparkRuntime, tested: Collection[str]) -> Callable[[str], str]:
    """Lets targets pass: the first on each file system, or in each bucket, after the self-test has passed there."""
    passed = set(tested)

    def test(uri: str) -> str:
        kind = kind_of(place(uri))
        if kind not in passed:
            self_test(spark.root, place(uri), field="spec.iteration.consumer.target")
            passed.add(kind)
        return uri

    return test


def _spark_settings(config: NodeConfig, work_dir: Path) -> SparkSettings:
    catalog = {f"spark.sql.catalog.{name}": value for name, value in config.catalog.items()}
    return SparkSettings(
        work_dir=work_dir,
        master=config.spark.master,
        driver_memory_mb=config.spark.driver_memory_mb,
        conf={**catalog, **config.spark.conf},
        s3=config.storage.s3,
    )


def _log_limits(config: NodeConfig) -> LogLimits:
    return replace(
        LogLimits(),
        status_delay_s=config.log.status_batch_s,
        compact_commits=config.log.compact_commits,
        compact_every_s=config.log.compact_interval_s,
        flush_every_s=config.log.flush_interval_s,
        collect_every_s=config.log.collect_interval_s,
        dropped_kept_s=config.log.keep_dropped_s,
    )


def _exit_after(seconds: float) -> None:
    """However a stop may hang, the process ends: its lease then runs out like a dead node's."""

    def end() -> None:
        log.critical("node.stop_hangs")
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
