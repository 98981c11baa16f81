"""A node that traces nothing wraps nothing; one that is to, and cannot, does not start."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from iscp.app.observation_parts import TracingSide, compose_tracing
from iscp.model.settings.config import JobLogConfig, NodeConfig, TracingConfig, tracing_faults
from iscp.model.values.errors import ConfigurationError
from iscp.ports.system import NO_TRACER
from iscp.schedule.runner import TracedRunner
from tests.fakes.clock import FakeClock
from tests.fakes.runner import FakeRunner
from tests.fakes.tracing import received_spans
from tests.fakes.webhooks import HttpReceiver

CONFIG = NodeConfig(node_id="n-1", log=JobLogConfig(uri="/log"))


def test_without_an_endpoint_nothing_is_wrapped() -> None:
    side, runner = compose_tracing(CONFIG), FakeRunner()
    assert side == TracingSide()
    assert side.tracer is NO_TRACER
    assert side.traced(runner) is runner
    assert side.noticed(FakeClock()) is None
    assert ([*side.interceptors], [*side.connections], dict(side.counters())) == ([], [], {})


def test_with_an_endpoint_spans_go_there_with_the_headers_of_the_file_and_a_close_sends_the_last(
    tmp_path: Path,
) -> None:
    (tmp_path / "headers").write_text("x-token: t-7\n")
    receiver = HttpReceiver()
    tracing = TracingConfig(endpoint=receiver.url, headers_file=str(tmp_path / "headers"))
    side = compose_tracing(replace(CONFIG, tracing=tracing))
    with side.tracer.span("iscp.notice", {}):
        pass
    assert isinstance(side.traced(FakeRunner()), TracedRunner)
    assert side.noticed(FakeClock()) is not None
    for each in side.connections:
        each.close()
    receiver.close()
    (request,) = receiver.received
    assert (request.headers["x-token"], request.headers["content-type"]) == ("t-7", "application/x-protobuf")
    assert [span.node for span in received_spans([request.body])] == ["n-1"]
    assert side.counters() == {"spans_sent": 1, "spans_dropped": 0}


def test_a_file_of_headers_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    tracing = TracingConfig(endpoint="http://127.0.0.1:1/", headers_file=str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=r"tracing\.headers_file"):
        compose_tracing(replace(CONFIG, tracing=tracing))


def test_without_the_packages_the_error_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from iscp.app.observation_parts import compose_tracing\n"
        "from iscp.model.settings.config import JobLogConfig, NodeConfig, TracingConfig\n"
        "tracing = TracingConfig(endpoint='http://127.0.0.1:1/')\n"
        "compose_tracing(NodeConfig(node_id='n', log=JobLogConfig(uri='/log'), tracing=tracing))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ConfigurationError: tracing.endpoint is given, and its packages are not installed" in done.stderr
    assert "pip install 'iscp-delta[tracing]'" in done.stderr


@pytest.mark.parametrize(
    ("tracing", "path"),
    [
        (TracingConfig(endpoint="collector:4318"), "tracing.endpoint"),
        (TracingConfig(endpoint="file:///etc/passwd"), "tracing.endpoint"),
        (TracingConfig(endpoint="http://user:secret@host/"), "tracing.endpoint"),
        (TracingConfig(endpoint="http://h/", sample_ratio=1.01), "tracing.sample_ratio"),
        (TracingConfig(headers_file="/h"), "tracing.endpoint"),
    ],
)
def test_settings_that_cannot_be_are_named_and_secrets_are_not(tracing: TracingConfig, path: str) -> None:
    (fault,) = tracing_faults(tracing)
    assert (fault.path, "secret" in fault.message) == (path, False)
    assert fault.remedy


def test_settings_that_can_be_have_no_fault() -> None:
    for tracing in (TracingConfig(), TracingConfig(endpoint="https://[::1]:4318/v1/traces?a=b", sample_ratio=0.0)):
        assert [*tracing_faults(tracing)] == []
