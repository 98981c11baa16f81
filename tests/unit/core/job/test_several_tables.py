"""A spec says which tables a job reads; what is no such thing counts for nothing."""

from __future__ import annotations

import json

import pytest

from iscp.core.job.job_row import JobRow
from iscp.core.job.several_tables import further_tables, tables_of
from iscp.core.values.ids import JobKey


def reading(tables: object) -> JobRow:
    consumer = {"kind": "view", "target": "/v", "options": {"sql": "…", "tables": tables}}
    spec = {"iteration": {"consumer": consumer}}
    return JobRow(JobKey("a", "t-1", "v"), "j-1", json.dumps(spec), "t", "/t")


def test_further_tables_are_those_besides_its_own_each_once() -> None:
    row = reading({"a": "/t", "b": "/u", "c": "/u", "d": "/w"})
    assert further_tables(row) == ("/u", "/w")
    assert tables_of(row) == {"a": "/t", "b": "/u", "c": "/u", "d": "/w"}
    assert further_tables(reading({"a": "/t"})) == ()


@pytest.mark.parametrize("tables", [{"b": "/u"}, ["/t", "/u"], {"a": "/t", "b": 1}, "/t", None])
def test_an_option_that_means_something_else_names_no_tables(tables: object) -> None:
    assert further_tables(reading(tables)) == ()


def test_a_spec_that_cannot_be_read_names_none() -> None:
    assert further_tables(reading({})._replace(spec_json='{"tables"')) == ()
