"""OpenTelemetry's readers, which also take what is observed: for Prometheus, and for a collector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData, PeriodicExportingMetricReader
from prometheus_client import CollectorRegistry

from iscp.adapters.system.http_exchange import HttpPeers, exchange, failure_words
from iscp.adapters.telemetry.observed_readings import ObservedReadings

EXPORT_TIMEOUT_S = 10.0
"""Longest time of one export by OTLP, with its retries; then it is given up, and counted. Nothing is queued: the next
export has all that was counted since the start.
"""

ANSWER_BYTES_MAX = 65_536
"""Bytes of a collector's answer, with its headers; if it is longer the attempt has failed."""


class PrometheusReader(PrometheusMetricReader):
    """Collects when `registry` is read, by one thread at a time."""

    def __init__(self, observed: ObservedReadings, registry: CollectorRegistry) -> None:
        self._observed = observed
        super().__init__(scope_info_enabled=False, registry=registry)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any) -> None:
        super()._receive_metrics(self._observed.added_to(metrics_data), timeout_millis, **options)


class CollectorReader(PeriodicExportingMetricReader):
    """Collects every `interval_s`, on a thread of its own, and exports."""

    def __init__(self, observed: ObservedReadings, exporter: CountingExporter, interval_s: float) -> None:
        self._observed = observed
        super().__init__(exporter, interval_s * 1e3, EXPORT_TIMEOUT_S * 1e3)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **options: Any) -> None:
        super()._receive_metrics(self._observed.added_to(metrics_data), timeout_millis, **options)


class CountingExporter(OTLPMetricExporter):
    """Exports by OTLP over HTTP. Headers and certificates come from the variables `OTEL_EXPORTER_OTLP_*`."""

    def __init__(self, endpoint: str, on_failed: Callable[[], None]) -> None:
        self._on_failed = on_failed
        super().__init__(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S, session=_BoundedSession())

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = EXPORT_TIMEOUT_S * 1e3, **options: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **options)
        if result is not MetricExportResult.SUCCESS:
            self._on_failed()
        return result


class _BoundedSession(requests.Session):
    """The way in which the SDK's exporter sends, by the client of the node; proxies and certificates are those that the
    environment names, as the library would take them.
    """

    def request(  # type: ignore[override]
        self,
        method: str,
        url: str,
        *,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> requests.Response:
        try:
            answer = exchange(
                method,
                url,
                data,
                headers or {},
                timeout_s=min(timeout or EXPORT_TIMEOUT_S, EXPORT_TIMEOUT_S),
                bytes_max=ANSWER_BYTES_MAX,
                peers=self._peers(url),
            )
        except OSError as error:
            raise requests.ConnectionError(failure_words(error)) from error
        if 300 <= answer.status < 400:  # which the exporter would take for a success
            raise requests.TooManyRedirects(f"the collector answers {answer.status}, and redirects are not followed")
        response = requests.Response()
        response.status_code, response._content = answer.status, answer.body
        response.headers.update(answer.headers)
        return response

    def _peers(self, url: str) -> HttpPeers:
        given = self.merge_environment_settings(url, {}, False, self.verify, self.cert)
        verify, shown = given["verify"], given["cert"]
        proxy = requests.utils.select_proxy(url, given["proxies"]) or ""
        if proxy and urlsplit(proxy).scheme != "http":
            raise requests.exceptions.InvalidProxyURL("the proxy for the collector is not reached by http")
        cert_file, key_file = shown if isinstance(shown, tuple) else (shown or "", "")
        ca_file = verify if isinstance(verify, str) else requests.utils.DEFAULT_CA_BUNDLE_PATH
        return HttpPeers(ca_file, cert_file, key_file, proxy)
