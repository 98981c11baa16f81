"""The meter of a node: one that measures, or one that does nothing."""

from __future__ import annotations

from iscp.model.settings.config import NodeConfig
from iscp.ports.system import NO_METER, Clock, Meter


def node_meter(config: NodeConfig, version: str, clock: Clock) -> Meter:
    """Return the meter of this node. Nothing of OpenTelemetry is imported where its metrics go nowhere."""
    if not config.metrics.used:
        return NO_METER
    from iscp.notices.open_telemetry_meter import OpenTelemetryMeter

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
