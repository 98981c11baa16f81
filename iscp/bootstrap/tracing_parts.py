"""Compose what records traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp import __version__
from iscp.adapters.delta.log.commit_head import read_commit_trace
from iscp.adapters.telemetry.http_target import HttpTarget, read_headers
from iscp.core.settings.config import NodeConfig
from iscp.core.values.errors import ConfigurationError
from iscp.ports.engine import IterationRunner
from iscp.ports.system import Clock
from iscp.ports.tracing import NO_TRACER, Tracer
from iscp.runtime.worker.noticed_commits import NoticedCommits
from iscp.runtime.worker.traced_runner import TracedRunner

if TYPE_CHECKING:
    import grpc

    from iscp.adapters.telemetry.otel_tracer import OtelTracer
    from iscp.runtime.node.node import Closes

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
        from iscp.adapters.grpc.admin.traced_calls import TracedCalls

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
        from iscp.adapters.telemetry.otel_tracer import OtelTracer
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
