"""A query as a tree of relational operators: how each of them follows a change of its input, how that is explained to
users, and whether the query's first rows can be computed of ranges of one of its tables.

Everything is decided from the shape of the tree alone. Expressions stay with the engine, which evaluates them: what is
equal, null or out of range is its business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import assert_never

from iscp.model.sql.sql_names import TIME_REFRESH_S, TimeDependence, finest
from iscp.model.values.progress import TableSize

# --- the explanation --------------------------------------------------------------------------------------------------
# The explanation shows users how a query's result follows changes, operator by operator.

CHANGED_ROWS = 1_000
"""Changed rows of a table for which costs are estimated."""


class OperatorUpkeep(StrEnum):
    """The way in which an operator's output follows a change of its input, from the cheapest on."""

    LINEAR = "linear"
    """The changed rows alone go through the operator."""

    JOINED = "joined"
    """Changed rows of one side are joined with the other side's rows."""

    STATE = "state"
    """The operator's groups are stored, and changed by what the changed rows add and take away."""

    TOUCHED = "touched"
    """The operator is recomputed for the keys that changed rows have, and for no others."""

    WHOLE = "whole"
    """The operator is recomputed as a whole, from its input, whenever that changes."""


@dataclass(frozen=True, slots=True)
class ChangeCost:
    """An estimate: for CHANGED_ROWS changed rows of `table` about `changed` come to the operator.

    The rows that belong to them are found among `read` rows (all of these, where it is recomputed as a whole). -1: not
    known.
    """

    table: str
    changed: int
    read: int


@dataclass(frozen=True, slots=True)
class KeptTable:
    """A table in which rows of a query are stored; `holds` says which."""

    uri: str
    holds: str
    size: TableSize


@dataclass(frozen=True, slots=True)
class ExplainedOperator:
    """One operator; `depth` is its place in the tree (0: the result), parents come before their inputs.

    `reason` says why it does not follow changes in a cheaper way, and `remedy` what to change; both are empty where
    there is nothing to say. `state` is what is stored for it besides the view's own rows. `costs` are those of a change
    of each table that it reads.
    """

    depth: int
    operator: str
    upkeep: OperatorUpkeep
    state: str = ""
    reason: str = ""
    remedy: str = ""
    costs: tuple[ChangeCost, ...] = ()


@dataclass(frozen=True, slots=True)
class QueryExplanation:
    """A query's `operators` as a tree in prefix order, and the `columns` of its result, with their types.

    `tables` has the names in the query, with the URI that each stands for, and `sizes` what their logs say. `kept` are
    the tables in which rows of it are stored already. `notes` are what users should know of the result, each a
    sentence. `statements` are those of a refresh without Spark, for each table that may change.
    """

    operators: tuple[ExplainedOperator, ...]
    columns: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sizes: Mapping[str, TableSize] = field(default_factory=dict)
    kept: tuple[KeptTable, ...] = ()
    statements: tuple[str, ...] = ()


# --- operators, and how they follow changes ---------------------------------------------------------------------------
# The rules are those of signed bags: with `old` and `new` an operator's input before and after, and `delta` their
# difference as rows with a weight, a linear operator gives the delta of its output from `delta` alone; a join is linear
# in each side; and an operator that works key by key is the same for all keys that `delta` lacks.


class OperatorKind(StrEnum):
    TABLE = "table"
    ROWS = "rows"
    PROJECT = "project"
    FILTER = "filter"
    UNION = "union"
    EXPAND = "expand"
    GENERATE = "generate"
    SORT = "sort"
    JOIN = "join"
    AGGREGATE = "aggregate"
    WINDOW = "window"
    LIMIT = "limit"


class JoinSide(Enum):
    """The inputs in which a join is linear while the other one stays as it is."""

    BOTH = "both"
    LEFT = "left"
    RIGHT = "right"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a query. `title` is what users are shown; `table` is a TABLE's name in the query.

    With `keyed` it works key by key: it has groups or partitions, or as a JOIN an equality between its sides.
    `subqueries` are those in its expressions, each of which gives one value for the whole operator. `by_time` says how
    its own condition depends on the time. With `adds_up` it is an AGGREGATE without groups, whose one row follows from
    totals (`totals`); `distincts` is the number of columns whose distinct values it counts or adds up. With
    `conditional` it is a JOIN with a condition.
    """

    kind: OperatorKind
    title: str
    inputs: tuple[Operator, ...] = ()
    table: str = ""
    keyed: bool = False
    linear_in: JoinSide = JoinSide.NEITHER
    subqueries: tuple[Operator, ...] = ()
    by_time: TimeDependence | None = None
    adds_up: bool = False
    conditional: bool = False
    distincts: int = 0

    def walk(self) -> Iterator[tuple[int, Operator]]:
        """Yield each operator with its depth, parents first; subqueries before inputs."""
        waiting = [(0, self)]
        while waiting:
            depth, operator = waiting.pop()
            yield depth, operator
            waiting += [(depth + 1, each) for each in reversed((*operator.subqueries, *operator.inputs))]

    def tables(self) -> frozenset[str]:
        """Return the names of the tables that it reads."""
        return frozenset(each.table for _, each in self.walk() if each.table)

    def time_dependence(self) -> TimeDependence | None:
        """Return how its rows depend on the time: the finest dependence within it, or None if there is none."""
        return finest(each.by_time for _, each in self.walk())


def upkeep_of(operator: Operator) -> OperatorUpkeep:
    """Return how its output follows a change of its inputs while the values of its subqueries stay as they are.

    A filter that depends on the time is linear too: what enters or leaves by the time alone is a filter of old rows.
    """
    if operator.by_time and operator.kind is not OperatorKind.FILTER:
        return OperatorUpkeep.WHOLE
    match operator.kind:
        case OperatorKind.JOIN:
            if operator.linear_in is JoinSide.BOTH:
                return OperatorUpkeep.JOINED
            by_rows = operator.conditional and operator.linear_in is not JoinSide.NEITHER
            return OperatorUpkeep.TOUCHED if operator.keyed or by_rows else OperatorUpkeep.WHOLE
        case OperatorKind.AGGREGATE if operator.adds_up:
            return OperatorUpkeep.STATE
        case OperatorKind.AGGREGATE | OperatorKind.WINDOW:
            return OperatorUpkeep.TOUCHED if operator.keyed else OperatorUpkeep.WHOLE
        case OperatorKind.LIMIT:
            return OperatorUpkeep.WHOLE
        case (
            OperatorKind.TABLE
            | OperatorKind.ROWS
            | OperatorKind.PROJECT
            | OperatorKind.FILTER
            | OperatorKind.UNION
            | OperatorKind.EXPAND
            | OperatorKind.GENERATE
            | OperatorKind.SORT
        ):
            return OperatorUpkeep.LINEAR
        case _:
            assert_never(operator.kind)


def reads_all_again(operator: Operator) -> bool:
    """Return whether a change may make it read more than rows of one table, or than the rows that belong to the changed
    ones.

    A filter whose value changes reads those rows of its input that are between the old value and the new.
    """
    if upkeep_of(operator) is OperatorUpkeep.WHOLE:
        return True
    return bool(operator.subqueries) and (
        operator.kind is not OperatorKind.FILTER or any(map(worth_storing, operator.inputs))
    )


def passes_stored_input(operator: Operator) -> bool:
    """Return whether stored rows of a query may lie below this operator.

    That is so if it has one input, and if values of its own cost little.
    """
    if operator.by_time or operator.adds_up:
        return False
    match operator.kind:
        case OperatorKind.FILTER | OperatorKind.SORT:
            return not any(reads_all_again(each) for value in operator.subqueries for _, each in value.walk())
        case OperatorKind.LIMIT | OperatorKind.PROJECT:
            return not operator.subqueries
        case OperatorKind.WINDOW | OperatorKind.AGGREGATE:
            return not (operator.keyed or operator.subqueries)
        case _:
            return False


def worth_storing(operator: Operator) -> bool:
    """Return whether its rows cost less to read than to compute, as it does more than pass on rows of one table."""
    costly = (OperatorKind.JOIN, OperatorKind.AGGREGATE, OperatorKind.WINDOW, OperatorKind.EXPAND)
    return any(each.kind in costly for _, each in operator.walk())


_WHOLE: dict[OperatorKind, tuple[str, str]] = {
    OperatorKind.JOIN: (
        "it is a full join without an equality between both sides, or an outer one without a condition",
        "Add an equality to the condition, as ON a.id = b.id AND …",
    ),
    OperatorKind.AGGREGATE: (
        "it has no GROUP BY, and not only counts, sums and averages of exact numbers, and extremes",
        "Add a GROUP BY; or aggregate exact numbers, as CAST(x AS DECIMAL(18, 2))",
    ),
    OperatorKind.WINDOW: (
        "it has no PARTITION BY, or groups by a session window alone: each row may change all others",
        "Add a PARTITION BY, or a column to GROUP BY",
    ),
    OperatorKind.LIMIT: ("which rows are within the limit depends on all of them", ""),
}


def explain_operators(root: Operator) -> tuple[ExplainedOperator, ...]:
    """Return the operators as a tree in prefix order."""
    return tuple(_explain(depth, operator) for depth, operator in root.walk())


def _explain(depth: int, operator: Operator) -> ExplainedOperator:
    upkeep = upkeep_of(operator)
    reason, remedy = _WHOLE.get(operator.kind, ("", "")) if upkeep is OperatorUpkeep.WHOLE else ("", "")
    if operator.by_time:
        reason, remedy = _explain_time(operator.by_time, upkeep)
    if operator.subqueries and not reason and reads_all_again(operator):
        again = "its input is" if operator.kind is OperatorKind.FILTER else "it is"
        reason = f"{again} recomputed as a whole where the value of a subquery in it changes"
        remedy = "Write the subquery as a join, if it often does"
    return ExplainedOperator(depth, operator.title, upkeep, reason=reason, remedy=remedy)


def _explain_time(by_time: TimeDependence, upkeep: OperatorUpkeep) -> tuple[str, str]:
    often = f"every {TIME_REFRESH_S:g} s" if by_time is TimeDependence.MOMENT else "when the day changes in UTC"
    reason = f"it depends on the time: though no table changes the view is refreshed {often}, or as it is scheduled"
    if upkeep is OperatorUpkeep.WHOLE:
        return f"{reason}, and this is recomputed as a whole then", "Compare with the time in WHERE, of one side alone"
    return f"{reason}, and rows that came or went by then are looked for in its input", ""


def undecided_reason(functions: str) -> str:
    """Return the sentence on rows that are decided by `functions`, which are separated by commas."""
    return f"rows are decided by {functions}, which may give another value in each run"


EXACT_REMEDY = "Decide by an exact function, as percentile or count(DISTINCT …); or only show the value"
"""The remedy where rows are decided by inexact functions."""


@dataclass(frozen=True, slots=True)
class QueryShape:
    """An analyzed query: its operators, the columns of its result (a Spark schema, JSON), and the tables that it names,
    of which the engine may leave some out, as the side of a join that changes no row.

    `stored` is the operator whose rows are stored beside the target, if there is one. With `by_group` the groups at its
    top, or where there is one those of `stored`, are stored as counts and sums, which few changed rows change without
    the engine. `whole` says for each table why the result cannot be made of ranges of it; empty: it can be. `undecided`
    has functions that something in it is decided by though they give another value each time; then its changes say
    nothing. `by_spark` says what in it DuckDB does not compute, and so Spark computes all; empty: there is nothing.
    `statements` are what a refresh of few changed rows runs, for each table.
    """

    root: Operator
    schema_json: str
    named: frozenset[str]
    stored: Operator | None = None
    by_group: bool = False
    whole: Mapping[str, str] = field(default_factory=dict)
    undecided: str = ""
    by_spark: tuple[str, ...] = ()
    statements: tuple[str, ...] = ()


# --- queries whose first rows are computed of ranges ------------------------------------------------------------------
# Each range of one table is computed by itself. The rules are those above: an operator is linear in a table if what it
# gives of all of the table's rows is what it gives of each part of them, put together. Above groups of what is linear
# anything may be: the groups of the parts are put together first, and are few.

_PASSING = (
    OperatorKind.PROJECT,
    OperatorKind.FILTER,
    OperatorKind.GENERATE,
    OperatorKind.EXPAND,
    OperatorKind.SORT,  # a table's rows have no order
)


@dataclass(frozen=True, slots=True)
class RangedQuery:
    """A query whose parts are put together from ranges: the groups of its operator `groups`, or its rows if that is
    None.
    """

    groups: Operator | None = None


@dataclass(frozen=True, slots=True)
class NotRanged:
    reason: str


def find_ranged(root: Operator, own: Collection[str]) -> RangedQuery | NotRanged:
    """Return how the query can be made of ranges of a table, or why not; `own` are the table's names in the query."""
    if _is_linear(root, own):
        return RangedQuery()
    node = root
    while not _is_grouping(node, own):
        reading = [each for each in node.inputs if _reads(each, own)]
        if len(reading) > 1 or _reads_in_values(node, own) or not reading or _is_linear(reading[0], own):
            return NotRanged(f"{node.title} needs all rows of {' and '.join(sorted(own))} at once")
        (node,) = reading
    return RangedQuery(node)


def _is_grouping(node: Operator, own: Collection[str]) -> bool:
    aggregates = node.kind is OperatorKind.AGGREGATE and not (node.subqueries or node.by_time)
    return aggregates and _is_linear(node.inputs[0], own)


def _is_linear(node: Operator, own: Collection[str]) -> bool:
    if _reads_in_values(node, own):
        return False
    match node.kind:
        case OperatorKind.TABLE:
            return node.table in own
        case OperatorKind.UNION:  # of what is of no range there would be a copy in each
            return all(_is_linear(each, own) for each in node.inputs)
        case OperatorKind.JOIN:
            left, right = node.inputs
            by_left = node.linear_in in (JoinSide.BOTH, JoinSide.LEFT) and not _reads(right, own)
            by_right = node.linear_in in (JoinSide.BOTH, JoinSide.RIGHT) and not _reads(left, own)
            return (by_left and _is_linear(left, own)) or (by_right and _is_linear(right, own))
        case kind if kind in _PASSING:
            return _is_linear(node.inputs[0], own)
        case _:
            return False


def _reads(node: Operator, own: Collection[str]) -> bool:
    return not node.tables().isdisjoint(own)


def _reads_in_values(node: Operator, own: Collection[str]) -> bool:
    """Return whether a value in its expressions is one of all rows."""
    return any(_reads(each, own) for each in node.subqueries)


# --- a query with its tables ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamedQuery:
    """A query with its `tables`: URIs, or names in a catalog, by their names in it. `note` says to what its lines and
    columns refer.
    """

    sql: str
    tables: Mapping[str, str]
    note: str = ""
