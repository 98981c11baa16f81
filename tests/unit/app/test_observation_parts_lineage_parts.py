"""Events of a node: none unless settings say where to, whole ones then, and a receiver that is away costs nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from iscp.app.observation_parts import LineageSide, compose_lineage
from iscp.model.job.iteration import Iteration
from iscp.model.job.job_row import JobRow
from iscp.model.settings.config import JobLogConfig, NodeConfig, OpenLineageConfig, openlineage_faults
from iscp.model.spec.spec_parsing import ViewFields
from iscp.model.values.errors import ConfigurationError
from iscp.model.values.ids import JobKey
from iscp.schedule.runner import LineageRunner
from tests.fakes.clock import FakeClock
from tests.fakes.guards import OpenGuard
from tests.fakes.lineage import official_document
from tests.fakes.runner import FakeRunner, applied
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
