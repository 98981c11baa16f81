"""The endpoint for Prometheus under TLS and authentication, with the access control of a node: who gets the metrics."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from http.client import HTTPSConnection
from typing import Any

import pytest

from iscp.model.access.service_table import Role
from iscp.model.metrics import declared_metrics as metrics
from iscp.model.metrics.declared_metrics import MetricReading
from iscp.notices.open_telemetry import OpenTelemetryMeter
from iscp.server.access.known_callers import CertificateCaller
from iscp.server.http.metrics_server import MetricsServer
from iscp.system.threads import SystemClock
from iscp.system.tls.tls_files import Tls
from tests.fakes.access import SYSTEM, Access
from tests.fakes.certificates import certified, known


class Guarded:
    """The endpoint of a node whose clients all show a certificate for `localhost`, which stands for `caller`."""

    def __init__(self, caller: CertificateCaller | None, node_name: str = "node.default.iscp") -> None:
        clock = SystemClock()
        self.tls = certified()
        self.meter = OpenTelemetryMeter({"service.name": "iscp"}, "1", clock)
        self.meter.observe(lambda: [MetricReading(metrics.NODE_SLOTS, 2)])
        self.access = Access(clock, {"localhost": caller} if caller else {}, node_name)
        self.server = MetricsServer("127.0.0.1:0", self.meter.registry, tls=self, allowed=self.access.callers.sees_all)
        self.server.start()

    def current(self) -> Tls:
        return self.tls

    def get(self, token: str = "", context: ssl.SSLContext | None = None) -> tuple[int, bool]:
        """Return the status, and whether there were metrics in the answer."""
        port = int(self.server.address.rpartition(":")[2])
        connection = HTTPSConnection("localhost", port, timeout=10.0, context=context or known(self.tls))
        try:
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
            answer = connection.getresponse()
            return answer.status, b"iscp_node_slots" in answer.read()
        finally:
            connection.close()

    def close(self) -> None:
        self.server.close()
        self.meter.close()


@pytest.fixture
def guarded(request: pytest.FixtureRequest) -> Iterator[Guarded]:
    made = Guarded(*getattr(request, "param", (None,)))
    yield made
    made.close()


def test_a_token_of_the_clusters_account_reads_them_until_it_is_revoked(guarded: Guarded) -> None:
    token = guarded.access.token(Role.VIEWER, SYSTEM)
    assert guarded.get(token) == (200, True)
    (record,) = guarded.access.tokens.records()
    assert guarded.access.tokens.revoke(record.token_id, SYSTEM)
    assert guarded.get(token) == (401, False)


def test_a_token_of_another_account_does_not_and_nor_does_nonsense_or_nothing(guarded: Guarded) -> None:
    assert guarded.get(guarded.access.token(Role.ADMIN, "acme")) == (403, False)
    assert guarded.get("nonsense") == (401, False)
    assert guarded.get()[1] is False


@pytest.mark.parametrize("guarded", [(CertificateCaller(SYSTEM, Role.VIEWER),), (None, "localhost")], indirect=True)
def test_a_certificate_of_the_clusters_account_or_of_a_node_does(guarded: Guarded) -> None:
    assert guarded.get() == (200, True)
    # A token counts alone where there is one.
    assert guarded.get(guarded.access.token(Role.ADMIN, "acme")) == (403, False)


@pytest.mark.parametrize("guarded", [(CertificateCaller("acme", Role.ADMIN),)], indirect=True)
def test_a_certificate_of_another_account_does_not(guarded: Guarded) -> None:
    assert guarded.get() == (403, False)


def test_without_a_certificate_a_good_token_is_worth_nothing(guarded: Guarded) -> None:
    token = guarded.access.token(Role.VIEWER, SYSTEM)
    stranger: Any = ssl.create_default_context(cadata=guarded.tls.authority.decode())
    with pytest.raises((OSError, ssl.SSLError)):
        guarded.get(token, stranger)
