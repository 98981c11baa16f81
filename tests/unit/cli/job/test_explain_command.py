"""`iscp-admin explain`: fields as they are written, without a node.

The JSON Schema of job files accepts and refuses the same files as the parser does.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.cli.job.explain_command import DIALECT, job_file_schema
from iscp.cli.job.job_file import read_jobs
from iscp.model.spec.spec import PATHS
from iscp.model.spec.spec_parsing import TAGS_MAX
from iscp.model.values.errors import InvalidRequest
from tests.fakes.json_schema import valid


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *arguments])


def test_a_field_has_type_default_bounds_and_meaning() -> None:
    assert [line.split(maxsplit=1) for line in explain("job.priority").stdout.splitlines()] == [
        ["field", "job.priority"],
        ["type", "whole number (from -1000 to 1000)"],
        ["default", "0"],
        ["about", "Iterations of a higher one go first"],
        ["same_as", "job.spec.iteration.priority"],
    ]
    shown = json.loads(explain("job.spec.trigger.schedule.interval", "-o", "json").stdout)
    assert (shown["type"], shown["default"], shown["same_as"]) == ("duration", None, "job.every")


def test_a_file_has_all_flat_fields_and_a_spec_all_nested_ones() -> None:
    flat = json.loads(explain("-o", "json").stdout)
    assert [each["field"] for each in flat] == [f"job.{name}" for name in ("table", "name", "account", *PATHS)]
    nested = json.loads(explain("job.spec", "-o", "json").stdout)
    assert [each["field"] for each in nested] == ["job.spec." + ".".join(path) for path in PATHS.values()]
    trigger = explain("job.spec.trigger").stdout.splitlines()
    assert len(trigger) == 8
    assert trigger[1].split()[:4] == ["job.spec.trigger.job_type", "default", "|", "greedy"]


@pytest.mark.parametrize(
    ("path", "words"), [("job.prio", "priority"), ("spec", "would be job"), ("job.key.x", "no field")]
)
def test_a_path_that_is_none_is_refused_with_those_that_are(path: str, words: str) -> None:
    result = explain(path)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_schema_is_printed_whole() -> None:
    schema = json.loads(explain("--json-schema").stdout)
    assert schema["$schema"] == DIALECT
    assert schema["$defs"]["spec"]["properties"]["target_lag"]["exclusiveMinimum"] == 0


def test_defaults_are_shown_in_every_format() -> None:
    assert "default: dead_letter\n" in explain("job.on_duplicate", "-o", "yaml").stdout


JOB = {"table": "/t", "name": "a", "target": "/copy"}
SPEC = {"iteration": {"consumer": {"kind": "replica", "target": "/copy"}}}

VIEW = {"table": "/t", "name": "v", "consumer": "view", "target": "/v"}
QUERY = {"sql": "SELECT 1 FROM t", "tables": {"t": "/t"}}

TAKEN: list[Any] = [
    {**VIEW, "options": QUERY},
    {**VIEW, "options": {**QUERY, "refresh": "strict"}, "trigger": "periodic", "every": "10m"},
    JOB,
    [JOB, {**JOB, "name": "b"}],
    {**JOB, "account": "acme", "key": ["id"], "columns": "a,b", "where": "a > 1", "options": {"x": [1]}},
    {**JOB, "key": "id", "consumer": "replica", "account": None, "where": None, "priority": None},
    {**JOB, "trigger": "periodic", "every": "1h30m", "share": True, "target_lag": 0.5, "priority": -1000},
    {**JOB, "trigger": "custom", "trigger_name": "nightly", "trigger_options": {"hour": 3}},
    {**JOB, "independent": True, "change_source": "cdf", "on_replace": "follow", "enable_cdf": True, "adopt_from": 0},
    {**JOB, "on_duplicate": "stop", "on_schema_change": "stop", "target_lag": "500ms", "consumer": None},
    {"table": "/t", "name": "a", "consumer": "changefeed", "target": "/feed"},
    {"table": "/t", "name": "a", "consumer": "own"},
    {**JOB, "tags": ["nightly", "sales"]},
    {**JOB, "tags": "nightly"},
    {**JOB, "tags": None},
    {"table": "/t", "name": "a", "spec": SPEC},
    {"table": "/t", "name": "a", "spec": {**SPEC, "trigger": {"job_type": "periodic", "schedule": {"interval": 60}}}},
    {"table": "/t", "name": "a", "spec": {"iteration": {**SPEC["iteration"], "priority": 5}, "target_lag": 9}},
]

REFUSED: list[Any] = [
    VIEW,
    {**VIEW, "options": {}},
    {**VIEW, "options": {**QUERY, "sql": " "}},
    {**VIEW, "options": {**QUERY, "tables": {}}},
    {**VIEW, "options": {**QUERY, "tables": {"t": 7}}},
    {**VIEW, "options": {**QUERY, "refresh": "never"}},
    "job",
    {"name": "a", "target": "/copy"},
    {"table": "/t", "target": "/copy"},
    {"table": "/t", "name": "a"},
    {**JOB, "table": ""},
    {**JOB, "name": 5},
    {**JOB, "prio": 5},
    {**JOB, "tags": [5]},
    {**JOB, "tags": [""]},
    {**JOB, "tags": ["t"] * (TAGS_MAX + 1)},
    {**JOB, "priority": 1001},
    {**JOB, "priority": True},
    {**JOB, "key": [""]},
    {**JOB, "key": [1]},
    {**JOB, "key": ["id", "id"]},
    {**JOB, "trigger": "hourly"},
    {**JOB, "trigger": "periodic", "every": "soon"},
    {**JOB, "target_lag": 0},
    {**JOB, "share": "yes"},
    {**JOB, "options": [1]},
    {**JOB, "adopt_from": -1},
    {**JOB, "adopt_from": 1.5},
    {**JOB, "spec": SPEC},
    {"table": "/t", "name": "a", "spec": {}},
    {"table": "/t", "name": "a", "spec": {"iteration": {"consumer": {"target": "/copy"}}}},
    {"table": "/t", "name": "a", "spec": {**SPEC, "target_lag": "5m"}},
    {"table": "/t", "name": "a", "spec": {**SPEC, "every": 5}},
]


def read(document: Any) -> None:
    read_jobs(io.StringIO(json.dumps(document)), "job.json")


@pytest.mark.parametrize("document", TAKEN, ids=range(len(TAKEN)))
def test_what_is_read_is_valid(document: Any) -> None:
    read(document)
    assert valid(document, job_file_schema())


@pytest.mark.parametrize("document", REFUSED, ids=range(len(REFUSED)))
def test_what_is_refused_is_not(document: Any) -> None:
    with pytest.raises(InvalidRequest):
        read(document)
    assert not valid(document, job_file_schema())
