"""Both engines beside each other: the values that Spark and DuckDB give for cases of the table of equality, to the bit.

DuckDB may raise where Spark gives a value: the row is handed over, and Spark decides. Another value, or another type,
is a difference, and so is a value where Spark raises.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema

from iscp.algebra.algebra import Group, Project, Rel, Table
from iscp.algebra.duck_aggregates import Entry
from iscp.algebra.duck_engine import define_functions, without_zones
from iscp.algebra.duck_text import ALLOW_LIST, Translation, leaf_name, translate
from iscp.views.analysis.query_analysis import AnalyzedQuery, analyze_query
from tests.equality.cases import Case, Shape, Types

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = "id"
Row = tuple[Any, ...]
"""The values of a row, such that equal means equal to the bit."""

RAISED: Row = ("raised",)
_NINE_DIGITS = "{:.9g}"


def canonical(value: object, loose: bool = False) -> object:
    """The value such that two are equal if they are the same to the bit; NaN is one value."""
    if isinstance(value, float):
        if value != value:
            return "NaN"
        return _NINE_DIGITS.format(value) if loose else struct.pack(">d", value)
    if isinstance(value, Decimal):
        return f"{value:f}" if value else "0"
    if isinstance(value, list):
        return tuple(map(canonical, value))
    return value.isoformat() if isinstance(value, dt.date) else value


def plain(table: pa.Table) -> pa.Table:
    """The table with times as whole numbers, so that no year is too large for Python."""
    columns = []
    for each in table.columns:
        if pa.types.is_timestamp(each.type):
            each = each.cast(pa.timestamp("us", each.type.tz)).cast(pa.int64())
        columns.append(each.cast(pa.int32()) if pa.types.is_date(each.type) else each)
    return pa.table(columns, names=table.schema.names)


def rows_by_id(table: pa.Table, loose: bool) -> dict[int, Row]:
    """The rows by their first column."""
    ids = table.column(0).to_pylist()
    rest = [[canonical(value, loose) for value in column.to_pylist()] for column in plain(table).columns[1:]]
    return dict(zip(ids, zip(*rest, strict=True), strict=True))


def kinds_of(table: pa.Table) -> list[str]:
    """The types of the columns; times of day in and without a zone are one in DuckDB, and labelled again later."""
    lists = (pa.list_(each.value_type) if pa.types.is_list(each) else each for each in table.schema.types)
    return [str(each).replace(", tz=UTC", "") for each in lists]  # the name of an element is nobody's question


@dataclass
class Ducks:
    """A DuckDB with the rows of one table."""

    rows: pa.Table
    database: duckdb.DuckDBPyConnection = field(default_factory=duckdb.connect)

    def __post_init__(self) -> None:
        self.database.execute("SET threads = 1")
        define_functions(self.database)
        self.database.register("kept", without_zones(self.rows))
        self.show("TRUE")

    def show(self, condition: str) -> None:
        """Has statements see the rows for which the condition is true."""
        name = leaf_name(Table((), (), "t"))
        self.database.execute(f'CREATE OR REPLACE TEMP VIEW "{name}" AS SELECT * FROM kept WHERE {condition}')

    def partitions(self, text: str, by: str, loose: bool) -> tuple[dict[int, Row], list[str]]:
        """The values over windows by ids; where it raises for a partition by this column, RAISED for all rows of it."""
        found: dict[int, Row] = {}
        kinds: list[str] = []
        for each in self.rows.column(by).unique().to_pylist() if by else [None]:
            self.show(f"{by} = {each}" if by else "TRUE")
            try:
                table = self.database.execute(text).to_arrow_table()
                found |= rows_by_id(table, loose)
                kinds = kinds_of(table)
            except duckdb.BinderException:
                raise
            except duckdb.Error:
                ids = zip(self.rows.column(ID).to_pylist(), self.rows.column(by or ID).to_pylist(), strict=True)
                found |= {number: RAISED for number, value in ids if not by or value == each}
        self.show("TRUE")
        return found, kinds

    def values(self, text: str, key: str, loose: bool) -> tuple[dict[int, Row], list[str]]:
        """The rows by their ids, RAISED for those for which it raises; and the types."""
        keys = sorted({*self.rows.column(key).to_pylist()})
        found: dict[int, Row] = {}
        kinds: list[str] = []
        waiting = [(0, len(keys))]
        while waiting:
            begin, end = waiting.pop()
            if begin == end:
                continue
            self.show(f"{key} BETWEEN {keys[begin]} AND {keys[end - 1]}")
            try:
                table = self.database.execute(text).to_arrow_table()
                found |= rows_by_id(table, loose)
                kinds = kinds_of(table)
            except duckdb.BinderException:
                raise
            except duckdb.Error:
                if end - begin == 1:
                    found[keys[begin]] = RAISED
                else:
                    middle = (begin + end) // 2
                    waiting += [(begin, middle), (middle, end)]
        self.show("TRUE")
        return found, kinds


@dataclass(frozen=True, slots=True)
class Written:
    """A case with the algebra that the reader made of it."""

    case: Case
    relation: Rel

    def translated(self, allowed: Iterable[Entry] = ALLOW_LIST) -> Translation:
        return translate(self.relation, allowed=allowed)


class Sparks:
    """A session, and the rows of one table in it."""

    def __init__(self, session: SparkSession, rows: pa.Table) -> None:
        self.session, self.rows = session, rows
        session.conf.set("spark.sql.session.timeZone", "UTC")
        session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
        self.schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True).json()

    def show(self, rows: pa.Table) -> None:
        self.session.createDataFrame(rows).createOrReplaceTempView("t")

    def analyzed(self, sql: str) -> tuple[AnalyzedQuery, Rel]:
        query = analyze_query(self.session, sql, {"t": self.schema})
        return query, query.algebra.root

    def read(self, cases: Sequence[Case]) -> list[Written]:
        """The cases with their algebra; expressions over the same rows are analyzed in one query."""
        shape = cases[0].shape
        if shape in (Shape.QUERY, Shape.WINDOWS):
            return [Written(each, self.analyzed(query_of(each))[1]) for each in cases]
        found = []
        for distinct in (False, True):
            few = [each for each in cases if ("DISTINCT" in each.sql) is distinct]
            if few:
                found += self._read_together(few, shape)
        return found

    def _read_together(self, cases: Sequence[Case], shape: Shape) -> list[Written]:
        shown = ", ".join(f"{each.sql} AS e{place}" for place, each in enumerate(cases))
        _, root = self.analyzed(
            f"SELECT g, {shown} FROM t GROUP BY g" if shape is Shape.GROUPS else f"SELECT id, {shown} FROM t"
        )
        assert isinstance(root, Project | Group), root
        key, *items = root.items
        assert len(items) == len(cases)
        if isinstance(root, Project):
            return [Written(each, Project(root.inputs, (key, item))) for each, item in zip(cases, items, strict=True)]
        return [
            Written(each, Group(root.inputs, root.keys, (key, item))) for each, item in zip(cases, items, strict=True)
        ]

    def all_values(self, wanted: Mapping[Case, Collection[int]]) -> dict[Case, pa.Table]:
        """The values of cases over the same rows for the ids that are wanted; it raises as Spark does."""
        cases = [*wanted]
        shape = cases[0].shape
        if shape is Shape.WINDOWS:
            self.show(self.rows)
            return {each: self.session.sql(query_of(each)).toArrow() for each in cases}
        key = "g" if shape is Shape.GROUPS else ID
        keys = self.rows.column(key).to_pylist()
        rows = self.rows
        for place, each in enumerate(cases):
            few = {*wanted[each]}
            rows = rows.append_column(f"ok{place}", pa.array([each in few for each in keys]))
        self.show(rows)
        if shape is Shape.GROUPS:
            return {
                each: self.session.sql(f"SELECT g, {each.sql} AS r FROM t WHERE ok{place} GROUP BY g").toArrow()
                for place, each in enumerate(cases)
            }
        shown = ", ".join(f"CASE WHEN ok{place} THEN {each.sql} END AS e{place}" for place, each in enumerate(cases))
        table = self.session.sql(f"SELECT id, {shown} FROM t").toArrow()
        return {each: table.select([ID, f"e{place}"]) for place, each in enumerate(cases)}

    def value(self, case: Case, number: int) -> Row:
        """The value of one row or group, or RAISED."""
        try:
            table = self.all_values({case: [number]})[case]
        except PySparkException:
            return RAISED
        return rows_by_id(table, case.loose)[number]

    def exact(self, case: Case) -> pa.Table:
        """The rows of a whole query; of one with exact sums as views compute it, with the plan that they run."""
        self.show(self.rows)
        frame = self.session.table("t")
        if not case.exact:
            return self.session.sql(query_of(case)).toArrow()
        query, _ = self.analyzed(query_of(case))
        catalyst = query.catalyst

        def over_rows(plan: Any) -> Any:
            if str(plan.nodeName()).split()[0] == "LogicalRDD":
                return catalyst.renamed(catalyst.plan_of(frame), plan)
            return plan.withNewChildren(catalyst.seq([over_rows(each) for each in catalyst.children(plan)]))

        return catalyst.frame(over_rows(query.root.plan)).toArrow()


def query_of(case: Case) -> str:
    """The SQL of a case that is analyzed by itself."""
    return case.sql if case.shape is Shape.QUERY else f"SELECT id, {case.sql} AS r FROM t"


def by_rows(cases: Iterable[Case]) -> Iterator[tuple[Shape, Types, list[Case]]]:
    """The cases by the rows that they are over."""
    found: dict[tuple[Shape, Types], list[Case]] = {}
    for each in cases:
        found.setdefault(each.rows, []).append(each)
    for (shape, types), few in found.items():
        yield shape, types, few
