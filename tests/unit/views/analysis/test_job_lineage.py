"""What is known of a job's tables is read when it is needed, remembered for a while, and never a fault."""

from __future__ import annotations

from collections.abc import Mapping

from iscp.core.job.job_row import JobRow
from iscp.core.lineage.run_events import InputColumn
from iscp.core.spec.view_fields import ViewFields
from iscp.core.values.ids import JobKey
from iscp.views.analysis.job_lineage import MISSING_S, REMEMBERED_MAX, REMEMBERED_S, JobLineage
from tests.fakes.bench import URI, job
from tests.fakes.clock import FakeClock

TARGET = "/targets/x"


class Tables:
    def __init__(self, columns: Mapping[str, Mapping[str, str]]) -> None:
        self.columns = dict(columns)
        self.reads: list[str] = []
        self.clock = FakeClock()
        self.lineage = JobLineage(self.read, self.clock)

    def read(self, uri: str) -> Mapping[str, str]:
        self.reads.append(uri)
        return self.columns.get(uri, {})


def view(sql: str, tables: Mapping[str, str]) -> JobRow:
    fields = ViewFields(sql, tables, TARGET)
    return JobRow(JobKey("a", "t-1", "v"), "id-v", fields.spec_json(), "t", fields.table)


def test_a_replica_takes_over_columns_of_the_same_name() -> None:
    tables = Tables({URI: {"id": "long", "v": "string"}, TARGET: {"id": "long", "own": "long"}})
    found = tables.lineage.known_tables(job("x"), TARGET)
    assert found.columns == tables.columns
    assert found.made_of == {"id": (InputColumn(URI, "id"),)}


def test_a_view_has_the_lineage_of_its_query_with_names_as_tables_have_them() -> None:
    tables = Tables({"/o": {"Id": "long", "x": "long"}, "/c": {"id": "long"}, TARGET: {"S": "long"}})
    row = view("SELECT sum(o.x) AS s FROM sales.o JOIN c ON o.id = c.id", {"sales.o": "/o", "c": "/c"})
    found = tables.lineage.known_tables(row, TARGET)
    assert found.made_of == {"S": (InputColumn("/o", "x", "DIRECT", "AGGREGATION"),)}
    assert set(found.rows_follow) == {
        InputColumn("/o", "Id", "INDIRECT", "JOIN"),
        InputColumn("/c", "id", "INDIRECT", "JOIN"),
    }


def test_tables_are_read_once_for_a_while_and_missing_ones_soon_again() -> None:
    tables = Tables({URI: {"id": "long"}})
    assert tables.lineage.known_tables(job("x"), TARGET).made_of == {}
    tables.columns[TARGET] = {"id": "long"}
    tables.lineage.known_tables(job("x"), TARGET)
    assert tables.reads == [URI, TARGET]
    tables.clock.advance(MISSING_S)
    assert tables.lineage.known_tables(job("x"), TARGET).made_of == {"id": (InputColumn(URI, "id"),)}
    assert tables.reads == [URI, TARGET, TARGET]
    tables.clock.advance(REMEMBERED_S)
    tables.lineage.known_tables(job("x"), TARGET)
    assert tables.reads[3:] == [URI, TARGET]


def test_what_is_remembered_is_bounded() -> None:
    tables = Tables({})
    for number in range(REMEMBERED_MAX + 10):
        tables.lineage.known_tables(job("x"), f"/targets/{number}")
    tables.reads.clear()
    tables.lineage.known_tables(job("x"), "/targets/0")
    assert tables.reads == ["/targets/0"]


def test_a_spec_and_a_query_that_cannot_be_read_are_no_faults() -> None:
    tables = Tables({"/o": {"x": "long"}, TARGET: {"x": "long"}})
    assert tables.lineage.known_tables(view("SELECT ((", {"a.o": "/o"}), TARGET).made_of == {}
