"""Composes what all parts of a node are built on: its foundation, its meter, what emits its events of OpenLineage, and
what records its traces.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from iscp import __version__
from iscp.app.registry import ConsumerRegistry, index_services
from iscp.delta.log.commits import read_commit_trace
from iscp.delta.log.table_opening import read_column_types
from iscp.delta.source.delta_catalog import SqlAnalysis
from iscp.engine.account_turns import PlaceGuard
from iscp.index.embedding.embedding_service import IndexServices
from iscp.model.access.authorization import AccountRoots
from iscp.model.job.job_row import JobRow
from iscp.model.run_events import EventEmitter, JobRunState, KnownTables, run_event
from iscp.model.settings.config import NodeConfig
from iscp.model.spec.spec_parsing import target_of
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.untrusted_values import error_text
from iscp.notices.bounded_sender import (
    BoundedSender,
    HttpTarget,
    SenderBounds,
    append_events,
    post_events,
    read_headers,
)
from iscp.ports.engine import IterationRunner, NodeDeaths, NodeLog
from iscp.ports.system import NO_METER, NO_TRACER, Clock, Failpoints, Meter, Tracer
from iscp.schedule.runner import LineageRunner, TracedRunner
from iscp.schedule.scheduler import NoticedCommits
from iscp.spark.deferred_spark import SparkAccess
from iscp.storage.locations import followed_places, followed_root
from iscp.storage.regular_files import REACH
from iscp.system.threads import SystemClock
from iscp.system.tls.certificate_watch import CertificateWatch, certificate_watch

if TYPE_CHECKING:
    import grpc

    from iscp.cluster.node import Closes
    from iscp.notices.open_telemetry import OtelTracer


# --- the foundation and the meter -------------------------------------------------------------------------------------
# The meter measures, or does nothing.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Foundation:
    """The foundation of a node: `tested` has the kinds of places where the self-test has passed, and `on_broken` ends
    the node.

    `analysis` takes the SQL of users. `indexes` are made at their first use.
    """

    config: NodeConfig
    spark: SparkAccess
    clock: SystemClock
    kinds: ConsumerRegistry
    failpoints: Failpoints
    tested: Collection[str]
    on_broken: Callable[[Exception], None]
    node_log: NodeLog
    deaths: NodeDeaths
    analysis: SqlAnalysis
    indexes: Callable[[], IndexServices]
    tracing: TracingSide
    lineage: LineageSide
    tls: CertificateWatch | None = None
    meter: Meter = NO_METER

    @classmethod
    def lay(
        cls,
        config: NodeConfig,
        spark: SparkAccess,
        *,
        failpoints: Failpoints,
        on_broken: Callable[[Exception], None],
        tested: Collection[str],
        node_log: NodeLog,
        deaths: NodeDeaths,
        analysis: SqlAnalysis,
    ) -> Foundation:
        """Raises ConfigurationError where the files of TLS cannot be used, or nothing can be traced."""
        clock = SystemClock()
        indexes = cache(lambda: index_services(config, clock, failpoints))
        kinds = ConsumerRegistry(config.consumers.allow, indexes)
        if kinds.absent:
            log.warning("consumers.not_installed", extra={"names": ", ".join(kinds.absent)})
        return cls(
            config=config,
            spark=spark,
            clock=clock,
            kinds=kinds,
            failpoints=failpoints,
            tested=tested,
            on_broken=on_broken,
            node_log=node_log,
            deaths=deaths,
            analysis=analysis,
            indexes=indexes,
            tracing=compose_tracing(config),
            lineage=compose_lineage(config, clock),
            tls=certificate_watch(config),
            meter=node_meter(config, __version__, clock),
        )

    @property
    def connections(self) -> Sequence[Closes]:
        """Return what is to be closed last."""
        return [*self.lineage.connections, *self.tracing.connections]

    def counters(self) -> Mapping[str, int]:
        """Return what is counted of telemetry; empty where nothing is sent."""
        return {**self.tracing.counters(), **self.lineage.counters()}


def compose_places(config: NodeConfig) -> PlaceGuard:
    """Return the guard that restricts the tables of each account's jobs to its roots, and the files that their logs
    name.
    """
    by_account = {account: each.roots for account, each in config.accounts.items() if each.roots}
    REACH.limit([*by_account.values()])
    return PlaceGuard(AccountRoots(by_account, config.security.cluster_account), followed_places, followed_root)


def node_meter(config: NodeConfig, version: str, clock: Clock) -> Meter:
    """Return the meter of this node. Nothing of OpenTelemetry is imported where its metrics go nowhere."""
    if not config.metrics.used:
        return NO_METER
    from iscp.notices.open_telemetry import OpenTelemetryMeter

    identity = {
        "service.name": "iscp",
        "service.namespace": config.cluster,
        "service.instance.id": config.node_id,
        "service.version": version,
    }
    return OpenTelemetryMeter(
        identity,
        version,
        clock,
        otlp_endpoint=config.metrics.otlp_endpoint,
        interval_s=config.metrics.interval_s,
    )


# --- events of OpenLineage --------------------------------------------------------------------------------------------

EVENTS_WAITING_MAX = 10_000
"""Events that wait for their receiver; one more is dropped, and counted."""

EVENTS_AT_ONCE_MAX = 100
"""Events that are appended to a file at once; more follow. Those for a URL are posted one by one."""

EVENTS_LINGER_S = 0.5
"""Seconds that an event for a file waits for others, to be written together with them."""

EVENTS_ATTEMPTS_MAX = 5
"""Attempts to hand an event to its receiver; after the last it is dropped, and counted."""

EVENTS_PAUSE_S = 1.0
"""Seconds between the first attempt to hand over an event and the second; it doubles with each."""

EVENTS_CLOSE_S = 3.0
"""Seconds that a stopping node waits for the receiver of its last events; then they are dropped, and counted."""

Receive = Callable[[Sequence[Mapping[str, Any]]], int]
DescribeTables = Callable[[JobRow, str], KnownTables]


@dataclass(frozen=True, slots=True)
class LineageSide:
    """The emission of events. Where nothing is emitted it is empty, and nothing is wrapped."""

    sender: BoundedSender[JobRunState] | None = None

    @property
    def connections(self) -> Sequence[Closes]:
        return [self] if self.sender is not None else []

    def counters(self) -> Mapping[str, int]:
        """Return what is counted of events; empty where none is emitted."""
        sender = self.sender
        return {"events_sent": sender.sent, "events_dropped": sender.dropped} if sender is not None else {}

    def observed(self, runner: IterationRunner, clock: Clock) -> IterationRunner:
        """Return the runner, reported if anything is."""
        if self.sender is None:
            return runner
        return LineageRunner(runner, self.sender.put, clock, lambda: str(uuid.uuid4()))

    def close(self) -> None:
        if self.sender is not None:
            self.sender.close(EVENTS_CLOSE_S)


def compose_lineage(config: NodeConfig, clock: Clock) -> LineageSide:
    """Raises ConfigurationError if the file of headers cannot be used."""
    lineage = config.openlineage
    if not lineage.used:
        return LineageSide()
    receive: Receive
    if lineage.url:
        headers = read_headers(lineage.headers_file, "openlineage.headers_file")
        receive, at_once, linger_s = partial(post_events, HttpTarget(lineage.url, headers, "application/json")), 1, 0.0
    else:
        receive, at_once, linger_s = partial(append_events, lineage.path), EVENTS_AT_ONCE_MAX, EVENTS_LINGER_S
    from iscp.views.analysis.column_lineage import JobLineage

    describe = JobLineage(read_column_types, clock).known_tables
    emitter = EventEmitter(lineage.namespace or config.cluster, __version__)
    bounds = SenderBounds(EVENTS_WAITING_MAX, at_once, linger_s, EVENTS_ATTEMPTS_MAX, EVENTS_PAUSE_S)
    return LineageSide(BoundedSender("openlineage", partial(send_runs, receive, describe, emitter), bounds))


def send_runs(receive: Receive, describe: DescribeTables, emitter: EventEmitter, runs: Sequence[JobRunState]) -> int:
    """Hand the events of `runs` over, and return how many were not taken. The storage is read here, on no other's time.

    Raises as `receive` does.
    """
    events = []
    for run in runs:
        try:
            target = target_of(run.row.spec_json)
            events.append(run_event(run, target, describe(run.row, target), emitter))
        except Exception as error:  # noqa: BLE001  (what is wrong with one job costs the events of no other)
            log.info("lineage.not_made", extra={"job_id": run.row.job_id, "error": error_text(error)})
    return len(runs) - len(events) + receive(events)


# --- traces -----------------------------------------------------------------------------------------------------------

CLOSE_WAIT_S = 3.0
"""Seconds that a stopping node waits for the receiver of its last spans; then they are dropped, and counted."""


@dataclass(frozen=True, slots=True)
class TracingSide:
    """The parts of tracing. Where nothing is traced they are empty, and nothing is wrapped."""

    tracer: Tracer = NO_TRACER
    recorder: OtelTracer | None = None

    @property
    def interceptors(self) -> Sequence[grpc.ServerInterceptor]:
        if self.recorder is None:
            return []
        from iscp.server.admin.forwarding import TracedCalls

        return [TracedCalls(self.tracer)]

    @property
    def connections(self) -> Sequence[Closes]:
        return [self] if self.recorder is not None else []

    def counters(self) -> Mapping[str, int]:
        """Return what is counted of spans; empty where nothing is traced."""
        return self.recorder.counters() if self.recorder is not None else {}

    def noticed(self, clock: Clock) -> NoticedCommits | None:
        """Return what records notices for a scheduler, or None if nothing is traced."""
        return NoticedCommits(self.tracer, clock) if self.recorder is not None else None

    def traced(self, runner: IterationRunner) -> IterationRunner:
        """Return the runner, recorded if anything is."""
        return TracedRunner(runner, self.tracer, read_commit_trace) if self.recorder is not None else runner

    def close(self) -> None:
        if self.recorder is not None:
            self.recorder.close(CLOSE_WAIT_S)


def compose_tracing(config: NodeConfig) -> TracingSide:
    """Nothing of OpenTelemetry is imported where `tracing.endpoint` is empty.

    Raises ConfigurationError if it is not installed, or the file of headers cannot be used.
    """
    tracing = config.tracing
    if not tracing.endpoint:
        return TracingSide()
    headers = read_headers(tracing.headers_file, "tracing.headers_file")
    try:
        from iscp.notices.open_telemetry import OtelTracer
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"is given, and its packages are not installed: {error}",
            field="tracing.endpoint",
            remedy="Install the packages of the extra `tracing`: pip install 'iscp-delta[tracing]'",
        ) from error
    target = HttpTarget(tracing.endpoint, headers, "application/x-protobuf")
    about = {
        "service.name": "iscp",
        "service.version": __version__,
        "service.namespace": config.cluster,
        "service.instance.id": config.node_id,
    }
    recorder = OtelTracer(target, tracing.sample_ratio, about)
    return TracingSide(recorder, recorder)
