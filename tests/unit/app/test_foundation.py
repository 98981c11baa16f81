"""Events of a node: none unless settings say where to, whole ones then, and a receiver that is away costs nothing.

A node that traces nothing wraps nothing; one that is to, and cannot, does not start.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.app.foundation import LineageSide, TracingSide, compose_lineage, compose_tracing
from iscp.model.job.iteration import Iteration
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import (
    JobLogConfig,
    NodeConfig,
    OpenLineageConfig,
    TracingConfig,
    openlineage_faults,
    tracing_faults,
)
from iscp.model.spec.spec_parsing import ViewFields
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.ids import JobKey
from iscp.ports.system import NO_TRACER
from iscp.schedule.runner import LineageRunner, TracedRunner
from tests.fakes.clock import FakeClock
from tests.fakes.guards import OpenGuard
from tests.fakes.lineage import official_document
from tests.fakes.runner import FakeRunner, applied
from tests.fakes.tracing import received_spans
from tests.fakes.waiting import until
from tests.fakes.webhooks import HttpReceiver

CONFIG = NodeConfig(node_id="n-1", cluster="c-1", log=JobLogConfig(uri="/log"))


def side_of(lineage: OpenLineageConfig) -> LineageSide:
    return compose_lineage(replace(CONFIG, openlineage=lineage), FakeClock())


def play(side: LineageSide, directory: Path) -> None:
    """One iteration of a view over a real table."""
    source, target = str(directory / "orders"), str(directory / "sums")
    write_deltalake(source, pa.table({"g": [1], "x": [2]}))
    write_deltalake(target, pa.table({"g": [1], "s": [2]}))
    view = ViewFields("SELECT g, sum(x) AS s FROM orders GROUP BY g", {"orders": source}, target)
    row = JobRow(JobKey("a", "t-1", "sums"), "id-1", view.spec_json(), "lake.orders", source)
    runner = side.observed(FakeRunner(lambda iteration, guard: applied(iteration, 0)), FakeClock())
    assert isinstance(runner, LineageRunner)
    runner.run(Iteration(1, "t-1", source, (row,)), OpenGuard())


def test_without_a_receiver_nothing_is_wrapped() -> None:
    side, runner = compose_lineage(CONFIG, FakeClock()), FakeRunner()
    assert side == LineageSide()
    assert side.observed(runner, FakeClock()) is runner
    assert ([*side.connections], dict(side.counters())) == ([], {})


def test_a_run_of_a_view_is_in_the_file_with_the_lineage_of_its_columns(tmp_path: Path) -> None:
    side = side_of(OpenLineageConfig(path=str(tmp_path / "events")))
    play(side, tmp_path)
    for each in side.connections:
        each.close()
    start, done = (json.loads(line) for line in (tmp_path / "events").read_text().splitlines())
    assert (start["eventType"], done["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == done["run"]["runId"]
    assert done["job"]["namespace"] == "c-1"
    made_of = done["outputs"][0]["facets"]["columnLineage"]["fields"]["s"]["inputFields"]
    assert [(each["name"], each["field"]) for each in made_of] == [(str(tmp_path / "orders"), "x")]
    assert [each["name"] for each in done["inputs"][0]["facets"]["schema"]["fields"]] == ["g", "x"]
    for event in (start, done):
        official_document(event)
    assert side.counters() == {"events_sent": 2, "events_dropped": 0}


def test_events_are_posted_in_order_with_the_headers_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("authorization: Bearer t\n")
    receiver = HttpReceiver()
    lineage = OpenLineageConfig(url=receiver.url, headers_file=str(tmp_path / "headers"), namespace="mine")
    side = side_of(lineage)
    play(side, tmp_path)
    until(lambda: len(receiver.received) == 2)
    side.close()
    receiver.close()
    assert [json.loads(each.body)["eventType"] for each in receiver.received] == ["START", "COMPLETE"]
    assert json.loads(receiver.received[0].body)["job"]["namespace"] == "mine"
    assert {each.headers["authorization"] for each in receiver.received} == {"bearer t"}


def test_a_receiver_that_refuses_events_has_them_dropped_and_counted(tmp_path: Path) -> None:
    receiver = HttpReceiver(lambda connection: connection.sendall(b"HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n"))
    side = side_of(OpenLineageConfig(url=receiver.url))
    play(side, tmp_path)
    until(lambda: side.counters()["events_dropped"] == 2)
    side.close()
    receiver.close()
    assert side.counters() == {"events_sent": 0, "events_dropped": 2}


def test_a_job_whose_spec_was_damaged_costs_the_events_of_no_other(tmp_path: Path) -> None:
    side, path = side_of(OpenLineageConfig(path=str(tmp_path / "events"))), tmp_path / "events"
    broken = JobRow(JobKey("a", "t-1", "broken"), "id-2", "{", "t", "/t")
    runner = side.observed(FakeRunner(lambda iteration, guard: applied(iteration, 0)), FakeClock())
    runner.run(Iteration(1, "t-1", "/t", (broken,)), OpenGuard())
    play(side, tmp_path)
    side.close()
    assert [json.loads(line)["job"]["name"] for line in path.read_text().splitlines()] == ["a:lake.orders:sums"] * 2
    assert side.counters() == {"events_sent": 2, "events_dropped": 2}


def test_a_file_of_headers_that_is_not_there_ends_the_start() -> None:
    with pytest.raises(ConfigurationError, match=r"openlineage\.headers_file"):
        side_of(OpenLineageConfig(url="http://127.0.0.1:1/", headers_file="/nowhere"))


@pytest.mark.parametrize(
    ("lineage", "path"),
    [
        (OpenLineageConfig(url="ftp://h/"), "openlineage.url"),
        (OpenLineageConfig(url="http://u:secret@h/"), "openlineage.url"),
        (OpenLineageConfig(url="http://h/", path="/f"), "openlineage.path"),
        (OpenLineageConfig(path="events.jsonl"), "openlineage.path"),
        (OpenLineageConfig(path="/f", headers_file="/h"), "openlineage.url"),
        (OpenLineageConfig(path="/f", namespace="a\nb"), "openlineage.namespace"),
    ],
)
def test_settings_that_cannot_be_are_named_and_secrets_are_not(lineage: OpenLineageConfig, path: str) -> None:
    (fault,) = openlineage_faults(lineage)
    assert (fault.path, "secret" in fault.message) == (path, False)
    assert fault.remedy


def test_settings_that_can_be_have_no_fault() -> None:
    for lineage in (
        OpenLineageConfig(),
        OpenLineageConfig(url="https://h/api/v1/lineage"),
        OpenLineageConfig(path="/f"),
    ):
        assert [*openlineage_faults(lineage)] == []


TRACING_CONFIG = NodeConfig(node_id="n-1", log=JobLogConfig(uri="/log"))


def test_without_an_endpoint_nothing_is_wrapped() -> None:
    side, runner = compose_tracing(TRACING_CONFIG), FakeRunner()
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
    side = compose_tracing(replace(TRACING_CONFIG, tracing=tracing))
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


def test_a_file_of_headers_that_is_not_there_ends_the_start_of_tracing(tmp_path: Path) -> None:
    tracing = TracingConfig(endpoint="http://127.0.0.1:1/", headers_file=str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=r"tracing\.headers_file"):
        compose_tracing(replace(TRACING_CONFIG, tracing=tracing))


def test_without_the_packages_the_error_says_what_to_install() -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from iscp.app.foundation import compose_tracing\n"
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
def test_settings_that_cannot_be_are_named_and_secrets_are_not_of_tracing(tracing: TracingConfig, path: str) -> None:
    (fault,) = tracing_faults(tracing)
    assert (fault.path, "secret" in fault.message) == (path, False)
    assert fault.remedy


def test_settings_that_can_be_have_no_fault_of_tracing() -> None:
    for tracing in (TracingConfig(), TracingConfig(endpoint="https://[::1]:4318/v1/traces?a=b", sample_ratio=0.0)):
        assert [*tracing_faults(tracing)] == []
