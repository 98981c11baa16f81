"""A node without an engine: `python -m benchmarks.bare_node CONFIG`. It obeys the owner, and runs nothing.

All else is a node's own: etcd, lease, election, the job log (no Spark is needed for it), gRPC, the machines. For what
is measured and tried of the coordination by itself.

What it takes in and gives up is written to TRACE (from the environment, if it is there): a line for each, of the
monotonic clock's nanoseconds, which all processes of a machine share, `+` or `-`, and the shard.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from iscp import __version__
from iscp.app.compose import refuse_misfit
from iscp.app.coordination_parts import compose_access
from iscp.app.foundation import compose_places
from iscp.app.registry import ConsumerRegistry
from iscp.app.settings import load_settings
from iscp.cluster.membership.assignments import ShardState
from iscp.cluster.node import Closes, LeaseKeeper, Node, NodeParts
from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_events import EventCollector, JobLogAccess, OwnerHooks
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.owner_machine import OwnerMachine
from iscp.cluster.read_services import SourceReleases
from iscp.cluster.requests.job_maker import JobMaker
from iscp.cluster.requests.job_views import DeadLetterReader, JobViews, JobWaiter
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.cluster.worker_loop import WorkerLoop
from iscp.cluster.worker_machine import WorkerMachine
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.etcd.member_keys import EtcdMembership
from iscp.etcd.owner_keys import EtcdCheckpoint, EtcdElection, EtcdLogMarks, EtcdOverrides
from iscp.model.api.api_requests import EventView
from iscp.model.job.iteration import NO_MAINTENANCE, JobMaintenance
from iscp.model.job.start_rule import TargetLog, VerifyReport
from iscp.model.protocol.events import (
    CoordinationTimes,
    HoldIterations,
    ShardOrder,
    ShardStarted,
    ShardStopped,
    StartShard,
    StopAllShards,
    StopShard,
    UpdateShard,
)
from iscp.model.query_plan import QueryShape
from iscp.model.settings.config import NodeConfig
from iscp.model.values.errors import InvalidRequest, Unavailable
from iscp.model.values.ids import WIRE_FORMAT, NodeRecord, ShardId
from iscp.model.values.progress import UNCOUNTED, UNKNOWN, TableSize
from iscp.notices.log_ring import LogRing, configure_logging
from iscp.ports.cluster import BuildAnswer, ClusterPorts, NodeCalls
from iscp.ports.engine import NodeLog
from iscp.ports.source import NothingHeld, TableDescription
from iscp.schedule.schedule_events import WorkerNews
from iscp.server.admin.admin_server import AdminServer, OperatorServer, Service
from iscp.server.admin.admin_service import ClusterViews, OwnerAdmin
from iscp.server.admin.forwarding import Forwarding
from iscp.server.admin.operator_service import OwnerOperator, Resharder
from iscp.server.http.gateway_server import GatewayServer
from iscp.server.node.node_server import NodeServer
from iscp.server.node.owner_streams import Peers
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import THREADS, SystemClock, collect_rarely
from iscp.system.tls.certificate_watch import certificate_watch

TRACE = "BARE_NODE_TRACE"
WIRE = "BARE_NODE_WIRE_FORMAT"
"""Another wire format to say that it speaks, as a node of another version would."""

CLOCKS = "BARE_NODE_CLOCKS"
"""A directory: `NODE.clock` in it has the seconds by which that node is wrong about the time; they may change."""

LOOK_S = 0.01


class SteppedClock(SystemClock):
    """A wall clock that somebody sets while the node runs; the monotonic clock is the machine's."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now_s(self) -> float:
        return super().now_s() + (float(self._file.read_text()) if self._file.exists() else 0.0)


def clock_of(node_id: str) -> SystemClock:
    clocks = os.environ.get(CLOCKS)
    return SteppedClock(Path(clocks, f"{node_id}.clock")) if clocks else SystemClock()


class NoEngine:
    """Stands for scheduler, executor and maintenance, and for what the owner may request of them."""

    def __init__(self, tell: Callable[[WorkerNews], None], trace: str, node_log: NodeLog) -> None:
        self._tell = tell
        self.logs = node_log.read
        self._trace = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if trace else -1
        self.shards: set[ShardId] = set()
        self.kept_events: Callable[[Sequence[int]], list[EventView]] = lambda known: []
        self.counts: dict[str, int] = {"first_start_us": 0, "last_start_us": 0}

    def give(self, order: ShardOrder) -> None:
        match order:
            case StartShard(shard):
                self.shards.add(shard)
                now_us = self._note("+", shard) // 1000
                self.counts["first_start_us"] = self.counts["first_start_us"] or now_us
                self.counts["last_start_us"] = now_us
                self._tell(ShardStarted(shard))
            case StopShard(shard):
                self._stop(shard)
            case StopAllShards():
                for shard in list(self.shards):
                    self._stop(shard)
            case UpdateShard() | HoldIterations():
                pass

    def _stop(self, shard: ShardId) -> None:
        self.shards.discard(shard)
        self._note("-", shard)
        self._tell(ShardStopped(shard))

    def _note(self, sign: str, shard: ShardId) -> int:
        now_ns = time.monotonic_ns()
        if self._trace >= 0:
            os.write(self._trace, f"{now_ns} {sign} {shard}\n".encode())
        return now_ns

    # The parts of a node, and the port NodeCalls.

    def start(self, executor: object = None) -> None: ...

    def close(self, *given: object, **named: object) -> bool:
        return True

    def notify(self, shard: ShardId, targets: bool) -> None: ...

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None: ...

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        raise Unavailable("this node has no engine")

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        answered(dict.fromkeys(task_ids, UNCOUNTED))
        return lambda: None

    def maintenance(self, job_id: str) -> JobMaintenance:
        return NO_MAINTENANCE

    def progress(self, job_id: str) -> None:
        return None

    def counters(self) -> dict[str, int]:
        return {**self.counts, "shards": len(self.shards), "waiting": 0, "running": 0}

    def events(self, known: Sequence[int]) -> list[EventView]:
        return self.kept_events(known)


class AnyTable:
    """Port Catalog: it has every table that is requested, at version 0."""

    def describe(self, table: str) -> TableDescription:
        return TableDescription(table.strip("/").replace("/", "-"), table, table, 0, 1.0, {"id": "long"})

    def has_version(self, uri: str, version: int) -> bool:
        return version == 0

    def size(self, uri: str) -> TableSize:
        return TableSize(UNKNOWN, UNKNOWN)

    def newest_version(self, uri: str) -> int:
        return 0

    def normalize(self, uri: str) -> str:
        return uri

    def locate(self, table: str) -> str:
        return table

    def condition_fault(self, condition: str, table: TableDescription) -> str:
        return ""

    def query_shape(self, sql: str, schemas: Mapping[str, str]) -> QueryShape:
        raise InvalidRequest("is a query, which nobody reads here")

    def refuse_links(self, table: str) -> None:
        """None leads anywhere here."""

    def logs_at(self, uri: str) -> frozenset[TargetLog]:
        return frozenset()

    def table_around(self, uri: str) -> str:
        return ""

    def missing_parent(self, uri: str) -> str:
        return ""


def watch_terms(owner: OwnerLoop, counts: dict[str, int]) -> None:
    """Note when this node began a term, and when everything ran under it, by the monotonic clock's microseconds."""
    known = 0
    while True:
        time.sleep(LOOK_S)
        term = owner.machine.term
        if term is None:
            counts["owner_rev"] = counts["settled"] = known = 0
        elif term.owner_rev != known:
            known, counts["owner_rev"] = term.owner_rev, term.owner_rev
            counts["term_us"], counts["placing_us"], counts["all_run_us"] = time.monotonic_ns() // 1000, 0, 0
        if term is not None:
            counts["owner_running"] = term.assignments.counts[ShardState.RUNNING]
            counts["settled"] = int(owner.machine.settled and term.rebalance_at_s is None)
            if not counts["placing_us"] and term.placing and term.peers:
                counts["placing_us"] = time.monotonic_ns() // 1000
            if not counts["all_run_us"] and owner.machine.running and len(term.assignments):
                counts["all_run_us"] = time.monotonic_ns() // 1000


def compose(config: NodeConfig, broken: Callable[[Exception], None], node_log: NodeLog) -> Node:
    clock, moved, keys = clock_of(config.node_id), ProgressSignal(), Keys(config.etcd_prefix)
    wire_format = int(os.environ.get(WIRE, WIRE_FORMAT))
    etcd = EtcdClient(EtcdSettings.of(config.etcd), clock)
    ttl_s, margin_s = config.etcd.lease_ttl_s, config.etcd.margin_s
    membership = EtcdMembership(etcd, keys, clock, THREADS, lease_ttl_s=ttl_s, margin_s=margin_s)
    election = EtcdElection(etcd, keys, clock, lease_ttl_s=ttl_s, margin_s=margin_s)
    overrides = EtcdOverrides(etcd, election, keys)
    checkpoints, marks = EtcdCheckpoint(etcd, election, keys), EtcdLogMarks(etcd, election, keys)
    cluster = ClusterPorts(membership, election, overrides, checkpoints, marks)
    times = replace(CoordinationTimes(), lease_ttl_s=ttl_s, margin_s=margin_s)
    tls = certificate_watch(config)
    peers = Peers(
        config.etcd_prefix,
        config.node_id,
        lambda node_id, messages: owner.receive(node_id, messages),
        wire_format=wire_format,
        tls=tls,
    )
    owner = OwnerLoop(
        OwnerMachine(config.node_id, __version__, times, wire_format),
        JobLogAccess(
            lambda: DeltaJobLog(config.log.uri, clock, EnvironmentFailpoints({}), cluster=config.cluster), config.log
        ),
        cluster,
        clock,
        OwnerHooks(
            lambda to, message: worker.receive([message]) if to.node_id == config.node_id else peers.send(to, message),
            peers.keep,
            moved.notify,
            broken,
            on_synced=lambda record: collector.collect(record),
        ),
    )
    worker = WorkerLoop(
        lambda epoch: WorkerMachine(config.node_id, epoch, __version__, times, wire_format),
        election,
        clock,
        lambda owner_id, message: (
            owner.receive(config.node_id, [message]) if owner_id == config.node_id else served.send(owner_id, message)
        ),
        broken,
    )
    engine = NoEngine(worker.report, os.environ.get(TRACE, ""), node_log)
    worker.orders.subscribe(engine.give, *get_args(ShardOrder))
    who = config.node_id, 0, config.address, os.getpid(), __version__, clock.now_s()
    record = NodeRecord(*who, wire_format=wire_format, authenticates=config.security.authentication)
    keeper = LeaseKeeper(membership, record, clock, worker.on_lease_lost, worker.on_lease_regained, broken)
    served = NodeServer(
        config.node_id,
        lambda: keeper.epoch,
        config.etcd_prefix,
        __version__,
        engine,
        worker.receive,
        wire_format,
        config.node_name if tls else "",
    )

    def calls_of(to: NodeRecord) -> NodeCalls:
        return engine if to.node_id == config.node_id else peers.call(to)

    engine.kept_events = owner.decisions.of_other_terms
    nodes, collector = NodeClients(owner, calls_of), EventCollector(owner.decisions, calls_of)
    views = ClusterViews(owner, membership, nodes, clock)
    kinds = ConsumerRegistry(())
    intake = RequestValidator(JobMaker(AnyTable(), kinds.kind, lambda trigger: None, clock, compose_places(config)))
    jobs = JobViews(owner, nodes, kinds.kind, clock)
    waiter = JobWaiter(owner, nodes, AnyTable(), jobs, clock, moved, lambda rows: None)
    sources = SourceReleases(NothingHeld(), kinds.kind)
    letters = DeadLetterReader(kinds.kind)
    admin = OwnerAdmin(owner, AnyTable(), intake, jobs, waiter, nodes, views.view, sources, letters.read)
    forwarding = Forwarding(lambda: owner.address_of(worker.owner_id, config.node_id), tls=tls)
    resharder = Resharder(owner, AnyTable(), kinds.kind, intake)
    operator = OperatorServer(OwnerOperator(owner, overrides, AnyTable(), resharder, nodes, kinds.described))
    access = compose_access(config, etcd, clock)
    services: list[Service] = [served, operator, access.server]
    interceptors = (*access.interceptors, forwarding)
    grpc_server = AdminServer(admin, config.listen, tls=tls, services=services, interceptors=interceptors)
    gateway = config.gateway.listen
    server = GatewayServer(grpc_server, gateway, __version__, tls=tls) if gateway else grpc_server
    threading.Thread(target=watch_terms, args=(owner, engine.counts), daemon=True).start()
    runs: Any = engine
    connections: list[Closes] = [nodes, collector, peers, forwarding, etcd]
    parts = NodeParts(server, keeper, owner, worker, runs, runs, runs, moved, connections, access.beside)
    return Node(
        config.node_id, membership, election, parts, preflight=partial(refuse_misfit, config, record, membership, tls)
    )


def main(file: str) -> int:
    config = load_settings(Path(file), os.environ)
    ring = LogRing(config.node_id, time.time_ns(), time.time)
    configure_logging(config.log_format, config.log_level, {"node": config.node_id}, ring=ring)
    stop, faults = threading.Event(), list[Exception]()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def broken(error: Exception) -> None:
        faults.append(error)
        stop.set()

    node = compose(config, broken, ring)
    collect_rarely()
    node.start(stop)
    stop.wait()
    node.stop(0.0 if faults else config.stop_timeout_s)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
