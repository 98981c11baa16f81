"""Whether a query's rows come out the same where they are made of those of parts of one of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial, reduce
from typing import TYPE_CHECKING, NoReturn

from iscp.algebra.algebra import TableRows
from iscp.model.query_plan import NotRanged
from iscp.model.values.watermark import QueryTotals
from iscp.views.analysis.query_analysis import AnalyzedQuery
from iscp.views.changes.group_changes import learn_totals, sums_finished
from iscp.views.changes.signed_rows import Instants, TableChange
from iscp.views.changes.spark_plans import KnownTotals, SparkPlans
from iscp.views.ranges.range_ways import GivenRows, RangedRows, RangeWay, find_ranged_rows
from tests.random_views.row_bags import Bag, bag_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTS = 3
"""Of which one is empty."""

Framed = Callable[[str, int], "DataFrame"]
"""Of a table by its name the rows of one part; -1: all."""


def ranged_results(analyzed: AnalyzedQuery, names: list[str], frame: Framed) -> dict[str, tuple[Bag, QueryTotals]]:
    """The query's rows and totals as they are made of parts of a table, for each table of which they can be."""
    found = {}
    for name in names:
        ranged = find_ranged_rows(analyzed.catalyst, analyzed.root, analyzed.stored, analyzed.sums, {name})
        if not isinstance(ranged, NotRanged):
            tables = {each: _table(frame(each, -1)) for each in names if each != name}
            tables[name] = TableChange(_unread, lambda: None)
            found[f"{ranged.way} of ranges of {name}"] = _put_together(analyzed, ranged, tables, partial(frame, name))
    return found


def _put_together(
    analyzed: AnalyzedQuery,
    ranged: RangedRows,
    tables: Mapping[str, TableChange],
    part: Callable[[int], DataFrame],
) -> tuple[Bag, QueryTotals]:
    catalyst, root, given = analyzed.catalyst, analyzed.root, GivenRows()
    parts = []
    for number in range(PARTS):
        own = dict.fromkeys(ranged.own, part(number))
        parts.append(ranged.part(SparkPlans(catalyst, analyzed.algebra, tables, Instants(), given=own)))
    staged = reduce(lambda one, other: one.unionAll(other), parts)
    ranged.give(SparkPlans(catalyst, analyzed.algebra, tables, Instants()), staged, given)
    totals = KnownTotals(after=dict(given.totals))
    with closing(SparkPlans(catalyst, analyzed.algebra, tables, Instants(), totals=totals, given=given.rows)) as plans:
        learn_totals(plans, root)
        if given.sums is not None:
            assert ranged.sums is not None
            rows = sums_finished(plans, ranged.sums, root, given.sums)
        else:
            rows = staged if ranged.way is RangeWay.ROWS else plans.result(root, TableRows.NEW)
        return bag_of(rows.collect()), plans.totals.of(root)


def _table(rows: DataFrame) -> TableChange:
    return TableChange(lambda at: rows, lambda: None)


def _unread(at: TableRows) -> NoReturn:
    raise AssertionError("the table is read as a whole")
