"""The settings of a node's metrics: their receivers, and how many jobs they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iscp.core.values.setting_faults import SettingFault, url_fault
from iscp.core.values.setting_fields import setting

JOBS_NAMED_MAX = 10_000
"""Jobs that `metrics.per_job_max` may name; a node that is to name more does not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The metrics of docs/metrics.md. A node without a place for them measures nothing."""

    listen: str = setting("", "Where the node serves its metrics to Prometheus, HOST:PORT; empty: nowhere")
    otlp_endpoint: str = setting("", "URL of an OpenTelemetry collector that takes OTLP by HTTP; empty: none")
    interval_s: float = setting(60.0, "The collector is sent metrics so often, and indexes are measured", least=1.0)
    per_job_max: int = setting(
        500, "Jobs that metrics name, those that lag most; of all others they have sums; at most 10,000", least=0
    )

    @property
    def used(self) -> bool:
        return bool(self.listen or self.otlp_endpoint)


def metrics_faults(config: MetricsConfig) -> Iterator[SettingFault]:
    """Yield what is wrong with where metrics go, and with how many jobs they name."""
    if config.otlp_endpoint and (fault := url_fault(config.otlp_endpoint)):  # not repeated: it may hold a secret
        yield SettingFault("metrics.otlp_endpoint", fault, "Write http://HOST:4318 or https://HOST/PATH")
    if config.per_job_max > JOBS_NAMED_MAX:
        yield SettingFault("metrics.per_job_max", "is too large", f"Give {JOBS_NAMED_MAX} or less")
