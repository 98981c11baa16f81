"""Every target of a soak against its source, by none of the code that made it: nothing is lost, nothing is doubled."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

import iscp
from iscp.cli.demo.lake import read
from tests.e2e.evidence import assert_feed_holds, assert_in_order, assert_watermarks_never_went_back, job_log_rows
from tests.e2e.harness import assert_equal
from tests.soak.rig import Rig
from tests.soak.soak_plan import INDEXES, VIEWS, WHERE, Kind, Plan, PlannedJob
from tests.soak.writing import IDS, WORDS


def compare(rig: Rig, plan: Plan) -> dict[str, str]:
    """Return by the names of jobs what is wrong with their targets, of those with which something is.

    All has to be at rest, and applied.
    """
    faults = {}
    for job in plan.jobs:
        try:
            _assert_right(rig, job)
        except Exception:  # noqa: BLE001  (one that is wrong is reported, and the others are compared)
            faults[job.name] = traceback.format_exc(limit=-3)
    try:
        assert_watermarks_never_went_back(job_log_rows(rig.layout.job_log))
    except AssertionError as error:
        faults["the job log"] = str(error)
    return faults


def _assert_right(rig: Rig, job: PlannedJob) -> None:
    target = f"{rig.derived}/{job.name}"
    rows = read(str(rig.lake / job.table.name))
    if job.kind in INDEXES:
        _assert_found(target, job.kind, rows)
        return
    assert_in_order(target)
    if job.kind is Kind.CHANGEFEED:
        assert_feed_holds(target, rows)
    elif job.kind in VIEWS:
        assert_equal(target, _computed(rig, job))
    elif job.kind is Kind.FILTERED:
        assert_equal(target, _selected("SELECT id, amount FROM source WHERE " + WHERE, source=rows))
    else:
        assert_equal(target, rows)


def _computed(rig: Rig, job: PlannedJob) -> pa.Table:
    return _selected(job.sql, **{table.name: read(str(rig.lake / table.name)) for table in job.tables})


def _selected(sql: str, **tables: pa.Table) -> pa.Table:
    with duckdb.connect() as connection:
        for name, rows in tables.items():
            connection.register(name, rows)
        return connection.execute(sql).to_arrow_table()


def _assert_found(target: str, kind: Kind, rows: pa.Table) -> None:
    """Each word finds just the rows that have it; vectors, of which all are near enough among so many, find all."""
    for question, expected in _questions(kind, rows):
        hits = iscp.search(target, question, k=2 * IDS).hits
        found = sorted(hit.key["id"] for hit in hits)
        assert found == sorted(expected), f"{question} finds {found}, not {sorted(expected)}"


def _questions(kind: Kind, rows: pa.Table) -> Iterator[tuple[str, list[int]]]:
    if kind is Kind.VECTOR:
        yield WORDS[0], rows["id"].to_pylist()
        return
    for word in WORDS:
        there = pc.match_substring_regex(rows["body"], rf"\b{word}\b")
        yield word, rows.filter(there)["id"].to_pylist()
