"""Who reads a table besides the one that it is on is found by that table's URI."""

from __future__ import annotations

from iscp.coordination.jobs.book_index import BookIndex
from iscp.core.job.job_row import JobRow
from iscp.core.spec.spec import ConsumerSpec, JobSpec
from iscp.core.values.ids import JobKey


def reading(name: str, *uris: str) -> JobRow:
    tables = {str(number): uri for number, uri in enumerate(("/tables/t1", *uris))}
    spec = JobSpec(ConsumerSpec("view", f"/targets/{name}", options={"tables": tables}))
    return JobRow(JobKey("default", "t1", name), f"id-{name}", spec.to_json(), "t1", "/tables/t1")


def test_readers_are_found_as_jobs_come_change_and_go() -> None:
    rows = [reading("a", "/t2", "/t3")]
    index = BookIndex(lambda: rows)
    assert index.readers("/t2") == index.readers("/t3") == {"id-a": "t1"}
    assert index.readers("/tables/t1") == {}
    index.add(reading("b", "/t2"))
    index.remove(reading("a", "/t2", "/t3"))
    assert (index.readers("/t2"), index.readers("/t3")) == ({"id-b": "t1"}, {})
    index.reread(reading("b", "/t2"), reading("b", "/t4"))
    assert (index.readers("/t2"), index.readers("/t4")) == ({}, {"id-b": "t1"})


def test_what_changes_before_anybody_wants_to_know_costs_nothing_and_is_seen_then() -> None:
    rows: list[JobRow] = []
    index = BookIndex(lambda: rows)
    index.add(reading("a", "/t2"))
    index.remove(reading("a", "/t2"))
    rows.append(reading("b", "/t3"))
    assert (index.readers("/t2"), index.readers("/t3")) == ({}, {"id-b": "t1"})
