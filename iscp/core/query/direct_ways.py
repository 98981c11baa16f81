"""The ways in which few changed rows of a view's tables become changes of its rows without Spark; and what is sound.

Spark finds them in the query's plan. They hold for any rows, so they are stored beside the target and read by other
processes. Who reads them believes nothing: a way has to fit the tables' schemas, and the columns that follow from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from iscp.core.algebra.algebra import Rel
from iscp.core.query.group_query import GroupQuery, Output
from iscp.core.query.join_query import Column, JoinedTable, JoinQuery, RowCondition
from iscp.core.values.column_identity import COLLATIONS
from iscp.core.values.totals import AggregateKind

SUMMED_DIGITS_MAX = 18
"""Digits of a decimal whose values and their sums fit in a whole number of 64 bits."""

_WHOLE_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_EQUAL = frozenset({*_WHOLE_BITS, "string", "date", "boolean"})
_SHOWN = frozenset({*_EQUAL, "timestamp", "timestamp_ntz"})
_OPERATORS = frozenset({"=", "!=", "<", "<=", ">", ">="})
_DECIMAL = re.compile(r"decimal\((?P<precision>[1-9]\d?),(?P<scale>\d\d?)\)")
_DIGITS_MAX = 38
_SUM_DIGITS, _AVERAGE_DIGITS = 10, 4
"""Digits by which Spark makes a sum, and on either side of the point an average, of decimals longer."""


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows and how they are grouped: `query` names the columns of `rows` by their places: `c0`, `c1`, …"""

    query: GroupQuery
    rows: JoinQuery


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a view's result; `kind` is its type, as Spark and Delta write it in JSON."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class DirectWays:
    """The direct ways of one query: by groups, by joins, or by its algebra, each None where only Spark follows changes.

    `columns` are the result's; there are none without a way.
    """

    columns: tuple[ResultColumn, ...] = ()
    grouped: GroupedRows | None = None
    joined: JoinQuery | None = None
    root: Rel | None = None

    @property
    def schema_json(self) -> str:
        """Return the schema of the result, as Spark and Delta write it."""
        fields = [{"name": each.name, "type": each.kind, "nullable": True, "metadata": {}} for each in self.columns]
        return json.dumps({"type": "struct", "fields": fields})


NO_WAYS = DirectWays()

ColumnKinds = Mapping[str, Mapping[str, str]]
"""The types of the columns of each table, by the table's name in the query; columns of other types are left out."""


def plain_kinds(schema_json: str) -> Mapping[str, str]:
    """Return the types of a table's columns that have no others within them, and whose texts compare as written.

    `schema_json` is the table's, from its log. Raises ValueError.
    """
    try:
        fields = json.loads(schema_json)["fields"]
        return {
            each["name"]: each["type"]
            for each in fields
            if isinstance(each["type"], str) and not (each.get("metadata") or {}).get(COLLATIONS)
        }
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("is no schema of a table") from error


def are_sound(ways: DirectWays, kinds: ColumnKinds) -> bool:
    """Return whether the ways can be taken over tables with columns of these types, and give columns of those types.

    They may be another query's: that cannot be seen from them.
    """
    if ways.grouped is None and ways.joined is None and ways.root is None:
        return not ways.columns
    if len({each.name.lower() for each in ways.columns}) < len(ways.columns) or not ways.columns:
        return False
    if ways.root is not None and not _is_over(ways.root, ways.columns, kinds):
        return False
    joined = ways.joined is None or _is_shown(ways.joined, ways.columns, kinds)
    return joined and (ways.grouped is None or _is_grouped(ways.grouped, ways.columns, kinds))


def _is_over(root: Rel, columns: Sequence[ResultColumn], kinds: ColumnKinds) -> bool:
    """Return whether a query has these columns, and reads tables that have the columns that it reads."""
    if [(each.name, each.type) for each in root.columns] != [(each.name, each.kind) for each in columns]:
        return False
    return all(
        kinds.get(table.name, {}).get(each.name) == each.type for table in root.tables() for each in table.fields
    )


def _is_shown(query: JoinQuery, columns: Sequence[ResultColumn], kinds: ColumnKinds) -> bool:
    if not _is_joined(query, kinds):
        return False
    found = [_kind_of(query, each, kinds) for each in query.outputs]
    return found == [each.kind for each in columns] and all(each in _SHOWN or _decimal(each) for each in found)


def _is_joined(query: JoinQuery, kinds: ColumnKinds) -> bool:
    """Return whether all columns are there, and those that are compared can be."""
    if not query.tables or not all(_is_read(each, kinds.get(each.name, {})) for each in query.tables):
        return False
    ends = [end for each in query.equalities for end in each]
    if not all(_is_there(query, each) for each in (*query.outputs, *ends)):
        return False
    for left, right in query.equalities:
        kind = _kind_of(query, left, kinds)
        if left.place == right.place or kind not in _EQUAL or kind != _kind_of(query, right, kinds):
            return False
    return query.connected


def _is_read(table: JoinedTable, kinds: Mapping[str, str]) -> bool:
    distinct = {*table.columns}
    return (
        0 < len(distinct) == len(table.columns)
        and distinct <= kinds.keys()
        and all(each.column in distinct and _is_met(each, kinds[each.column]) for each in table.conditions)
    )


def _is_met(condition: RowCondition, kind: str) -> bool:
    """Return whether the condition can be decided of values of that type."""
    value = condition.value
    if not condition.operator:
        return value is None
    if condition.operator not in _OPERATORS:
        return False
    if kind == "string":
        return type(value) is str
    most = 1 << (_WHOLE_BITS.get(kind, 0) - 1) if kind in _WHOLE_BITS else 0
    return type(value) is int and -most <= value < most


def _is_there(query: JoinQuery, column: Column) -> bool:
    return 0 <= column.place < len(query.tables) and column.name in query.tables[column.place].columns


def _kind_of(query: JoinQuery, column: Column, kinds: ColumnKinds) -> str:
    return kinds[query.tables[column.place].name][column.name]


def _is_grouped(grouped: GroupedRows, columns: Sequence[ResultColumn], kinds: ColumnKinds) -> bool:
    query, rows = grouped.query, grouped.rows
    if not _is_joined(rows, kinds) or not query.keys or len(query.outputs) != len(columns):
        return False
    of_rows = {f"c{place}": _kind_of(rows, each, kinds) for place, each in enumerate(rows.outputs)}
    if any(of_rows.get(each) not in _EQUAL for each in query.keys):
        return False
    if {each.column for each in query.outputs if each.kind is None} != {*query.keys}:
        return False
    if query.scales != _scales(query.outputs, of_rows):
        return False
    pairs = zip(query.outputs, columns, strict=True)
    return all(output.name == column.name and _gives(output, column.kind, of_rows) for output, column in pairs)


def _scales(outputs: Iterable[Output], of_rows: Mapping[str, str]) -> dict[str, int]:
    """Return the digits behind the point of each column that is added up."""
    summed = {each.column for each in outputs if each.kind and each.kind.has_sum}
    return {each: (_decimal(of_rows.get(each, "")) or (0, 0))[1] for each in summed}


def _gives(output: Output, kind: str, of_rows: Mapping[str, str]) -> bool:
    """Return whether the output has this type, over rows with columns of these types."""
    there, result = of_rows.get(output.column, ""), _decimal(kind)
    if output.scale != (result[1] if result else None):
        return False
    if output.kind is None:
        return kind == there
    if output.kind is AggregateKind.COUNT:
        return kind == "long" and (bool(there) or not output.column)
    average = output.kind is AggregateKind.AVERAGE
    if not output.kind.has_sum:
        return False
    if there in _WHOLE_BITS:
        return kind == ("double" if average else "long")
    summed = _decimal(there)
    if summed is None or result is None or summed[0] > SUMMED_DIGITS_MAX:
        return False
    precision, scale = summed
    if average:
        return result == (precision + _AVERAGE_DIGITS, scale + _AVERAGE_DIGITS)
    return result == (precision + _SUM_DIGITS, scale)


def _decimal(kind: str) -> tuple[int, int] | None:
    """Return the digits of a decimal, in all and behind the point; None: the type is another one."""
    found = _DECIMAL.fullmatch(kind)
    if found is None:
        return None
    precision, scale = int(found["precision"]), int(found["scale"])
    return (precision, scale) if scale <= precision <= _DIGITS_MAX else None
