"""The JSON Schema of job files accepts and refuses the same files as the parser does."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from iscp.cli.job.job_file import read_jobs
from iscp.cli.job.json_schema import job_file_schema
from iscp.core.run.wanted import TAGS_MAX
from iscp.core.values.errors import InvalidRequest
from tests.fakes.json_schema import valid

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
