"""Exports by OTLP, to a real receiver of HTTP, and to none."""

from __future__ import annotations

import gzip
import threading
import time
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import MetricReading
from iscp.notices.open_telemetry import CLOSE_S, CountingExporter, OpenTelemetryMeter
from iscp.system.http_exchange import free_port
from iscp.system.threads import SystemClock
from tests.fakes.waiting import until
from tests.fakes.webhooks import HttpReceiver


class Collector:
    """Takes exports, or answers all with `status`; `hangs` holds back each answer until it is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ExportMetricsServiceRequest]] = []
        self.status = 200
        self.answers = threading.Event()
        self.answers.set()
        collector = self

        class Request(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = ExportMetricsServiceRequest()
                message.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
                collector.answers.wait(60.0)
                if collector.status == 200:
                    collector.requests.append((self.path, message))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """A test has no need of it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Request)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def values(self) -> dict[str, float]:
        """The sums over all attributes of the last export."""
        found = dict[str, float]()
        (resource,) = self.requests[-1][1].resource_metrics
        for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
            points = metric.sum.data_points or metric.gauge.data_points
            found[metric.name] = sum(each.as_double or each.as_int for each in points)
        return found

    def identity(self) -> dict[str, str]:
        (resource,) = self.requests[-1][1].resource_metrics
        return {each.key: each.value.string_value for each in resource.resource.attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.answers.set()
    made.server.shutdown()
    made.server.server_close()


def meter_to(url: str, interval_s: float = 0.2) -> OpenTelemetryMeter:
    identity = {"service.name": "iscp", "service.instance.id": "n-1"}
    meter = OpenTelemetryMeter(identity, "1", SystemClock(), otlp_endpoint=url, interval_s=interval_s)
    meter.observe(lambda: [MetricReading(metrics.NODE_SLOTS, 2)])
    meter.record(metrics.ITERATION_ROWS, 3, {"iscp.kind": "view"})
    return meter


def test_what_is_recorded_and_what_is_observed_is_exported_together(collector: Collector) -> None:
    meter = meter_to(collector.url)
    until(lambda: collector.requests)
    assert collector.requests[-1][0] == "/v1/metrics"
    found = collector.values()
    assert (found[metrics.ITERATION_ROWS.name], found[metrics.NODE_SLOTS.name]) == (3, 2)
    assert collector.identity().items() >= {"service.name": "iscp", "service.instance.id": "n-1"}.items()
    meter.close()


def test_the_end_sends_what_was_counted_since_the_last_export(collector: Collector) -> None:
    meter = meter_to(collector.url, interval_s=3_600.0)
    meter.close()
    assert collector.values()[metrics.ITERATION_ROWS.name] == 3


@pytest.mark.parametrize("status", [400, 307])
def test_exports_that_are_refused_are_counted_and_the_next_one_has_all(collector: Collector, status: int) -> None:
    collector.status = status
    meter = meter_to(collector.url)
    time.sleep(1.0)
    collector.status = 200
    until(lambda: collector.requests)
    assert collector.values()[metrics.ITERATION_ROWS.name] == 3
    until(lambda: collector.values()[metrics.NODE_EXPORT_FAILURES.name] >= 1)
    meter.close()


@pytest.mark.parametrize("interval_s", [0.1, 3_600.0])
def test_a_collector_that_is_away_delays_no_end_for_long(interval_s: float) -> None:
    meter = meter_to(f"http://127.0.0.1:{free_port()}", interval_s)
    time.sleep(0.5)
    began_s = time.monotonic()
    meter.record(metrics.ITERATION_ROWS, 1, {})
    meter.close()
    assert time.monotonic() - began_s < CLOSE_S + 3.0


def test_a_collector_that_hangs_delays_no_end_for_long(collector: Collector) -> None:
    collector.answers.clear()
    meter = meter_to(collector.url)
    time.sleep(0.5)
    began_s = time.monotonic()
    meter.record(metrics.ITERATION_ROWS, 1, {})
    assert time.monotonic() - began_s < 0.5
    meter.close()
    assert time.monotonic() - began_s < CLOSE_S + 3.0


def test_an_answer_is_not_unpacked() -> None:
    packed = gzip.compress(bytes(50 * 1024**2))
    head = f"HTTP/1.1 400 Bad\r\ncontent-encoding: gzip\r\ncontent-length: {len(packed)}\r\n\r\n"
    receiver = HttpReceiver(lambda connection: connection.sendall(head.encode() + packed))
    failures = list[int]()
    exporter = CountingExporter(receiver.url, lambda: failures.append(1))
    tracemalloc.start()
    try:
        assert exporter.export(MetricsData([])) is MetricExportResult.FAILURE
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024**2
    finally:
        tracemalloc.stop()
        receiver.close()
    assert failures == [1]
