"""The endpoint for Prometheus, on real sockets."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPSConnection
from typing import Any

import pytest

from iscp.model.access.service_table import Credentials
from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import MetricReading
from iscp.model.values.errors import ConfigurationError, NotAuthenticated
from iscp.notices.open_telemetry import OpenTelemetryMeter
from iscp.server.http.http_server import HEAD_BYTES_MAX, PENDING_PER_HOST_MAX
from iscp.server.http.metrics_server import ANSWERS_MAX, MetricsServer
from iscp.system.threads import SystemClock
from tests.fakes.certificates import certified, known
from tests.fakes.waiting import until

HOST = "127.0.0.1"


@pytest.fixture
def meter() -> Iterator[OpenTelemetryMeter]:
    made = OpenTelemetryMeter({"service.name": "iscp"}, "1", SystemClock())
    made.observe(lambda: [MetricReading(metrics.NODE_SLOTS, 2)])
    yield made
    made.close()


class Served:
    def __init__(self, meter: OpenTelemetryMeter, **options: Any) -> None:
        self.server = MetricsServer(f"{HOST}:0", meter.registry, **options)
        self.server.start()
        self.port = int(self.server.address.rpartition(":")[2])

    def get(self, path: str = "/metrics", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        connection = HTTPConnection(HOST, self.port, timeout=10.0)
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, body


@pytest.fixture
def served(meter: OpenTelemetryMeter) -> Iterator[Served]:
    made = Served(meter)
    yield made
    made.server.close()


def test_metrics_are_read_as_text_and_as_open_metrics(served: Served) -> None:
    status, text = served.get()
    assert (status, b"iscp_node_slots 2.0\n" in text) == (200, True)
    _, text = served.get(headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert text.endswith(b"# EOF\n")


def test_nothing_else_is_there(served: Served) -> None:
    assert served.get("/")[0] == 404
    assert served.get("/metrics/../etc")[0] == 404


def test_a_port_that_is_taken_is_refused_by_its_setting(served: Served, meter: OpenTelemetryMeter) -> None:
    with pytest.raises(ConfigurationError, match="taken") as refused:
        MetricsServer(served.server.address, meter.registry)
    assert refused.value.field == "metrics.listen"


def test_the_port_is_free_after_the_end(meter: OpenTelemetryMeter) -> None:
    first = Served(meter)
    first.server.close()
    again = MetricsServer(first.server.address, meter.registry)  # which never starts
    again.close()


def test_a_request_that_is_too_long_or_no_http_is_cut_off(served: Served) -> None:
    for sent in (b"GET /metrics HTTP/1.1\r\n" + b"x: y\r\n" * HEAD_BYTES_MAX, b"\x16\x03\x01" * 100 + b"\r\n\r\n"):
        with socket.create_connection((HOST, served.port), 10.0) as connection:
            try:
                connection.sendall(sent)
                answer = connection.recv(1 << 16)
            except OSError:
                answer = b""
        assert b"200 OK" not in answer
    assert served.get()[0] == 200


def test_connections_that_say_nothing_hold_nobody_up(served: Served) -> None:
    silent = [socket.create_connection((HOST, served.port), 10.0) for _ in range(PENDING_PER_HOST_MAX + 8)]
    assert served.get()[0] == 200
    silent[0].settimeout(10.0)
    assert silent[0].recv(1) == b""  # the oldest has given way
    for each in silent:
        each.close()


def test_more_readers_than_are_answered_at_a_time_are_refused(meter: OpenTelemetryMeter) -> None:
    go_on, collecting = threading.Event(), threading.Event()

    def read() -> list[MetricReading]:
        collecting.set()
        assert go_on.wait(30.0)
        return []

    meter.observe(read)
    served = Served(meter)
    statuses: list[int] = []
    readers = [threading.Thread(target=lambda: statuses.append(served.get()[0])) for _ in range(ANSWERS_MAX + 3)]
    for each in readers:
        each.start()
    assert collecting.wait(10.0)
    until(lambda: len(statuses) == 3)
    assert statuses == [503] * 3
    go_on.set()
    for each in readers:
        each.join(30.0)
    assert sorted(statuses) == [200] * ANSWERS_MAX + [503] * 3
    served.server.close()


def test_who_may_not_read_metrics_of_all_accounts_is_refused(meter: OpenTelemetryMeter) -> None:
    def allowed(credentials: Credentials) -> bool:
        if credentials.token == "damaged":
            raise NotAuthenticated("is not known", field="token")
        return credentials.token == "good"

    served = Served(meter, allowed=allowed)
    assert served.get(headers={"Authorization": "Bearer good"})[0] == 200
    assert served.get(headers={"Authorization": "Bearer damaged"})[0] == 401
    for headers in ({}, {"Authorization": "Basic good"}, {"Authorization": "Bearer other"}):
        status, body = served.get(headers=headers)
        assert (status, b"iscp_node" in body) == (403, False)
    served.server.close()


def test_by_tls_a_reader_is_known_by_its_certificate(meter: OpenTelemetryMeter) -> None:
    tls, seen = certified(), list[Credentials]()

    class Source:
        def current(self) -> Any:
            return tls

    def allowed(credentials: Credentials) -> bool:
        seen.append(credentials)
        return True

    served = Served(meter, tls=Source(), allowed=allowed)
    connection = HTTPSConnection("localhost", served.port, timeout=10.0, context=known(tls))
    connection.request("GET", "/metrics")
    assert b"iscp_node_slots" in connection.getresponse().read()
    connection.close()
    assert "localhost" in seen[0].names

    nobody = ssl.create_default_context(cadata=tls.authority.decode())
    stranger = HTTPSConnection("localhost", served.port, timeout=10.0, context=nobody)
    stranger.connect()
    with suppress(OSError):  # in TLS 1.3 its server refuses a client after the client's handshake
        stranger.request("GET", "/metrics")
        assert not stranger.getresponse()
    assert len(seen) == 1
    served.server.close()
