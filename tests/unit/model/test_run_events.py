"""Events are those of OpenLineage: its own client reads each field of them, and writes them back the same.

Names of tables are those that OpenLineage's own client gives to the same places.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from openlineage.client.naming.dataset import S3, LocalFileSystem

from iscp.model.build.build_task import BuildRequest
from iscp.model.job.iteration import JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.run_events import (
    COLUMNS_MAX,
    INPUT_FIELDS_MAX,
    EventEmitter,
    InputColumn,
    JobRunState,
    KnownTables,
    RunState,
    dataset_name,
    job_name,
    run_event,
    state_of,
)
from iscp.model.spec.spec_parsing import ViewFields
from iscp.model.values.errors import ErrorCode
from iscp.model.values.ids import JobKey
from iscp.model.values.untrusted_values import NAME_CHARS_MAX
from iscp.model.values.watermark import SourceMark, Watermark
from tests.fakes.bench import job
from tests.fakes.lineage import official_document

RUN = "0191f0a2-7b3c-4c5d-8e6f-0123456789ab"
EMITTER = EventEmitter("main", "0.1.0")
ORDERS, PEOPLE, TARGET = "/lake/orders", "s3a://lake/people", "/lake/derived/view"
VIEW = ViewFields(
    "SELECT name, amount FROM orders JOIN people USING (id)", {"orders": ORDERS, "people": PEOPLE}, TARGET
)
ROW = JobRow(JobKey("acme", "t-1", "sales"), "id-1", VIEW.spec_json(), "lake.orders", ORDERS)
KNOWN = KnownTables(
    {ORDERS: {"id": "long", "amount": "double"}, TARGET: {"name": "string", "amount": "double"}},
    {
        "amount": (InputColumn(ORDERS, "amount"),),
        "name": (InputColumn(PEOPLE, "name", "DIRECT", "TRANSFORMATION"), InputColumn("nowhere", "x")),
    },
    (InputColumn(ORDERS, "id", "INDIRECT", "JOIN"), InputColumn(PEOPLE, "id", "INDIRECT", "JOIN")),
)
DONE = JobOutcome(
    ROW,
    Watermark(7, 1.0),
    3,
    rows=11,
    bytes=2_000,
    committed=True,
    target_version=12,
    sources={PEOPLE: SourceMark("t-2", Watermark(4)), ORDERS: SourceMark("t-1", Watermark(7))},
)


def event(state: RunState, outcome: JobOutcome | None = None, row: JobRow = ROW, known: KnownTables = KNOWN) -> Any:
    found = run_event(JobRunState(RUN, state, 1_700_000_000.25, row, outcome), TARGET, known, EMITTER)
    json.dumps(found)
    return found


def test_a_start_says_what_is_read_and_written() -> None:
    found = event(RunState.START)
    assert (found["eventTime"], found["eventType"]) == ("2023-11-14T22:13:20.250Z", "START")
    assert (found["job"]["namespace"], found["job"]["name"]) == ("main", "acme:lake.orders:sales")
    assert found["job"]["facets"]["sql"]["query"] == VIEW.sql
    assert [(each["namespace"], each["name"]) for each in found["inputs"]] == [
        ("file", ORDERS),
        ("s3://lake", "people"),
    ]
    assert [each["name"] for each in found["outputs"]] == [TARGET]
    assert "outputFacets" not in found["outputs"][0]


def test_a_completed_run_says_versions_figures_and_of_which_columns_each_is_made() -> None:
    found = event(RunState.COMPLETE, DONE)
    assert [each["facets"]["version"]["datasetVersion"] for each in found["inputs"]] == ["7", "4"]
    (output,) = found["outputs"]
    statistics = output["outputFacets"]["outputStatistics"]
    assert output["facets"]["version"]["datasetVersion"] == "12"
    assert (statistics["rowCount"], statistics["size"]) == (11, 2_000)
    lineage = output["facets"]["columnLineage"]
    assert lineage["fields"]["name"]["inputFields"] == [
        {
            "namespace": "s3://lake",
            "name": "people",
            "field": "name",
            "transformations": [{"type": "DIRECT", "subtype": "TRANSFORMATION"}],
        }
    ]
    assert [(each["name"], each["field"]) for each in lineage["dataset"]] == [(ORDERS, "id"), ("people", "id")]


def test_a_failed_run_says_why_and_no_figures() -> None:
    failed = replace(DONE, error_code=ErrorCode.STORAGE, error_msg="the disk \x00 is away", committed=False)
    found = event(RunState.FAIL, failed)
    message = found["run"]["facets"]["errorMessage"]["message"]
    assert "the disk" in message
    assert message.isprintable()
    assert "outputFacets" not in found["outputs"][0]


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (RunState.START, None),
        (RunState.COMPLETE, DONE),
        (RunState.COMPLETE, replace(DONE, committed=False)),
        (RunState.FAIL, replace(DONE, error_code=ErrorCode.ENGINE, error_msg="")),
        (RunState.RUNNING, DONE),
        (RunState.ABORT, replace(DONE, error_code=ErrorCode.CANCELED)),
    ],
)
def test_the_official_client_reads_each_field_and_writes_the_same(state: RunState, outcome: JobOutcome | None) -> None:
    found = event(state, outcome)
    assert without_nothing(official_document(found)) == without_nothing(found)


def test_the_official_client_reads_the_event_of_a_replica() -> None:
    row = job("copy")
    outcome = replace(DONE, row=row, rows_in=4, sources={})
    found = event(RunState.COMPLETE, outcome, row, KnownTables())
    assert found["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 4
    assert "sql" not in found["job"]["facets"]
    assert without_nothing(official_document(found)) == without_nothing(found)


def without_nothing(document: Any) -> Any:
    """Without fields that are empty: the official client leaves some of them out."""
    if isinstance(document, dict):
        found = {name: without_nothing(value) for name, value in document.items()}
        return {name: value for name, value in found.items() if value not in (None, {}, [])}
    return [*map(without_nothing, document)] if isinstance(document, list) else document


def test_poisoned_names_make_an_event_that_can_be_read() -> None:
    poison = '\ud800\x1b[2J\n"}'
    row = ROW._replace(key=JobKey(poison, "t-1", poison), table_name=poison)
    known = KnownTables({ORDERS: {poison: poison}}, {poison: (InputColumn(ORDERS, poison),)})
    outcome = replace(DONE, row=row, error_code=ErrorCode.STORAGE, error_msg=poison)
    found = event(RunState.FAIL, outcome, row, known)
    text = json.dumps(found, ensure_ascii=False)
    text.encode()
    assert "\x1b" not in text
    assert json.loads(text) == found
    assert "\\x1b[2J" in job_name(row)


def test_an_event_is_bounded_however_many_columns_there_are() -> None:
    many = {f"c{number}": "long" for number in range(10_000)}
    inputs = tuple(InputColumn(ORDERS, name) for name in many)
    found = event(RunState.COMPLETE, DONE, known=KnownTables({TARGET: many}, dict.fromkeys(many, inputs[:1]), inputs))
    facets = found["outputs"][0]["facets"]
    assert len(facets["schema"]["fields"]) == len(facets["columnLineage"]["fields"]) == COLUMNS_MAX
    assert len(facets["columnLineage"]["dataset"]) == INPUT_FIELDS_MAX


def test_a_job_without_a_place_of_its_own_has_no_output() -> None:
    found = run_event(JobRunState(RUN, RunState.START, 0.0, ROW), "postgres://h/t", KnownTables(), EMITTER)
    assert found["outputs"] == []


def test_the_state_of_a_run_follows_from_the_outcome() -> None:
    build = BuildRequest(7, 3, 1)
    assert state_of(DONE) is RunState.COMPLETE
    assert state_of(replace(DONE, build=build)) is RunState.RUNNING
    assert state_of(replace(DONE, error_code=ErrorCode.TIMEOUT)) is RunState.FAIL
    assert state_of(replace(DONE, error_code=ErrorCode.CANCELED)) is RunState.ABORT


@pytest.mark.parametrize(
    "changes",
    [{"committed": False}, {"target_version": -1}, {"row": job("feed", kind="changefeed")}],
    ids=["nothing", "unknown", "feed"],
)
def test_a_version_is_only_said_of_a_table_that_was_committed_to(changes: dict[str, Any]) -> None:
    """A changefeed's sink counts its own commits, which are no versions of the table."""
    (output,) = event(RunState.COMPLETE, replace(DONE, **changes))["outputs"]
    assert "version" not in output["facets"]


def test_a_local_path_is_named_as_the_official_client_names_it() -> None:
    official = LocalFileSystem("/lake/orders")
    expected = official.get_namespace(), official.get_name()
    for uri in ("/lake/orders", "/lake/orders/", "file:///lake/orders", "file:/lake/orders"):
        assert dataset_name(uri) == expected
    assert dataset_name("file:///lake/a%20b") == ("file", "/lake/a b")


def test_a_place_on_s3_is_named_as_the_official_client_names_it() -> None:
    official = S3("bucket", "lake/orders")
    expected = official.get_namespace(), official.get_name()
    for uri in ("s3://bucket/lake/orders", "s3a://bucket/lake/orders", "s3://bucket//lake/orders/"):
        assert dataset_name(uri) == expected


@pytest.mark.parametrize(
    "uri",
    ["", "/", "orders", "../x", "s3://", "s3://bucket", "s3:///key", "postgres://host/table", "http://[", "file:x"],
)
def test_what_is_no_place_of_a_table_has_no_name(uri: str) -> None:
    assert dataset_name(uri) is None


def test_poisoned_names_are_escaped_and_endless_ones_are_none() -> None:
    found = dataset_name("/lake/\x1b[2J\n\ud800")
    assert found is not None
    assert found.name == "/lake/\\x1b[2J\n\\ud800"
    found.name.encode()
    assert dataset_name("/" + "x" * NAME_CHARS_MAX) is None
