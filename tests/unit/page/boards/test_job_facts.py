"""What boards know of a job, whatever its spec and status hold."""

from __future__ import annotations

import pytest

from iscp.core.job.job_row import JobStatus
from iscp.core.values.watermark import SourceMark, Watermark
from iscp.page.boards.job_facts import (
    SOURCES_MAX,
    TEXT_CHARS_MAX,
    UNKNOWN_KIND,
    error_name,
    facts_of,
    spec_text,
)
from tests.fakes.viewed_cluster import job_view


def test_the_spec_says_kind_target_and_target_lag() -> None:
    facts = facts_of(job_view(3))
    assert (facts.kind, facts.target, facts.target_lag_s) == ("replica", "/lake/copies/c3", 60.0)
    assert facts.sources == ("/lake/t3",)
    assert facts.title == "/lake/copies/c3"


def test_a_view_reads_the_tables_of_its_query_and_those_of_its_status() -> None:
    options = {"sql": "select 1", "tables": {"a": "/lake/t0", "b": "/lake/other"}}
    spec = {"iteration": {"consumer": {"kind": "view", "target": "/lake/v", "options": options}}}
    mark = SourceMark("id-9", Watermark(3, 1.0))
    facts = facts_of(job_view(0, spec, status=JobStatus(sources={"/lake/third": mark})))
    assert facts.sources == ("/lake/t0", "/lake/other", "/lake/third")
    assert facts.target_lag_s == -1.0


@pytest.mark.parametrize(
    "spec_json",
    ["", "{", "[]", "null", '{"iteration": 5}', '{"iteration": {"consumer": {"kind": 7, "target": {}}}}', "[" * 9999],
)
def test_a_damaged_spec_hides_no_job(spec_json: str) -> None:
    facts = facts_of(job_view(1, spec_json=spec_json))
    assert facts.kind in (UNKNOWN_KIND, "7")
    assert facts.target == ""
    assert facts.title == "copy1"


def test_what_a_tenant_writes_is_bounded() -> None:
    tables = {str(number): f"/lake/{number}" for number in range(1000)}
    spec = {"iteration": {"consumer": {"kind": "k" * 9999, "options": {"tables": tables}}}}
    facts = facts_of(job_view(0, spec, status=JobStatus(error_code=1, error_msg="e" * 9999, warning="w" * 9999)))
    assert {len(facts.kind), len(facts.error_msg), len(facts.warning)} == {TEXT_CHARS_MAX}
    assert len(facts.sources) == SOURCES_MAX


def test_errors_of_later_versions_are_numbers() -> None:
    assert error_name(10_001) == "TABLE_NOT_FOUND"
    assert error_name(77_777) == "error 77777"
    assert spec_text('{"a": 1}') == '{\n  "a": 1\n}'
    assert spec_text("{") == "{"
