"""The aggregate functions of queries: what is stored of each, how that is merged, and how it is finished.

The state of a function is its value for some rows, before the last step. There are two: counts, sums and extremes as
whole numbers, which rows may leave again (stored groups, totals), and states of parts of the rows, which are merged
(ranges). From either follows the buffer of Spark's function after all rows, and the last step is Spark's own: so sums
of doubles are those that Spark gives too, in some order of a table's files; exact ones are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from iscp.algebra.change_plan import number_names
from iscp.delta.rows.net_changes import comparable, is_one_of, whole_types
from iscp.model.sql.sql_names import WEIGHT
from iscp.model.values.watermark import AggregateKind, Total
from iscp.system.late_imports import F, T, column_of_java
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    ColumnOrName = Column | str

FUNCTIONS_MAX = 64
"""Functions of one aggregate whose totals are stored, in each commit of the view; one with more is recomputed."""

_DIGITS_MAX, _SCALE_MAX = 27, 6
"""Digits of a decimal that Spark multiplies by a row's weight exactly: one of the two is enough."""


@cache
def _extreme_types() -> tuple[type[T.DataType], ...]:
    return (*whole_types(), T.DecimalType, T.DateType, T.BooleanType)


@cache
def plain_types() -> tuple[type[T.DataType], ...]:
    """Return the types whose values are written to a table, read and grouped as they are."""
    times = (T.TimestampType, T.TimestampNTZType)
    return (*_extreme_types(), T.FloatType, T.DoubleType, *times, T.BinaryType, T.StringType)


_NO_MOMENTS = "named_struct('n', 0D, 'mean', 0D, 'm2', 0D)"
_MOMENTS = "named_struct('n', coalesce({0}, 0D), 'mean', coalesce({1}, 0D), 'm2', coalesce({2}, 0D))"
# As CentralMomentAgg of Spark merges what two parts hold, after Chan, Golub and LeVeque.
_BOTH_MOMENTS = (
    "if(x.n + y.n = 0D, x, named_struct('n', x.n + y.n, 'mean', x.mean + (y.mean - x.mean) * y.n / (x.n + y.n), "
    "'m2', x.m2 + y.m2 + (y.mean - x.mean) * (y.mean - x.mean) * x.n * y.n / (x.n + y.n)))"
)


@dataclass(frozen=True, slots=True)
class Aggregate:
    """One kind of function, as SQL. `functions` are the names of Spark's classes that are of the kind.

    `state` is that of the rows of a part, over `{value}`: an argument, or null where the row does not count. `merge` is
    the state of several, over their columns `{0}`, `{1}`, … `buffers` are those of Spark's function after all rows,
    over the merged state. The JVM itself has state and merge of EXACT.
    """

    functions: tuple[str, ...]
    state: tuple[str, ...]
    merge: tuple[str, ...]
    buffers: tuple[str, ...]


AGGREGATES = {
    AggregateKind.COUNT: Aggregate(("Count",), ("count({value})",), ("coalesce(sum({0}), 0)",), ("{0}",)),
    # Of a decimal it says besides that there was none.
    AggregateKind.SUM: Aggregate(("Sum",), ("sum({value})",), ("sum({0})",), ("{0}", "{0} IS NULL")),
    AggregateKind.AVERAGE: Aggregate(
        ("Average",),
        ("sum({value})", "count({value})"),
        ("coalesce(sum({0}), 0)", "coalesce(sum({1}), 0)"),
        ("{0}", "{1}"),
    ),
    AggregateKind.LEAST: Aggregate(("Min",), ("min({value})",), ("min({0})",), ("{0}",)),
    AggregateKind.MOST: Aggregate(("Max",), ("max({value})",), ("max({0})",), ("{0}",)),
    AggregateKind.MOMENTS: Aggregate(
        ("StddevPop", "StddevSamp", "VariancePop", "VarianceSamp"),
        ("CAST(count({value}) AS DOUBLE)", "avg({value})", "var_pop({value}) * CAST(count({value}) AS DOUBLE)"),
        (f"aggregate(collect_list({_MOMENTS}), {_NO_MOMENTS}, (x, y) -> {_BOTH_MOMENTS})",),
        ("{0}.n", "{0}.mean", "{0}.m2"),
    ),
    AggregateKind.EXACT: Aggregate(("ExactAggregate",), (), (), ("{0}",)),
}
_KINDS = {name: kind for kind, each in AGGREGATES.items() for name in each.functions}


def kind_of(function: Expression) -> AggregateKind | None:
    """Return the kind of one of Spark's functions, or None if it is of none."""
    return _KINDS.get(str(function.getClass().getSimpleName()))


@dataclass(frozen=True, slots=True, eq=False)
class AggregateFunction:
    """One function of a query. `place` is its place among those of its aggregate, `function` Spark's own.

    None of the `arguments` may be null in a row that counts; `type` is that of the first. `condition` is that of FILTER
    (WHERE …). With `distinct` equal values count once.
    """

    place: int
    kind: AggregateKind
    function: Expression
    arguments: tuple[Expression, ...]
    type: T.DataType
    condition: Expression | None
    distinct: bool

    @property
    def scale(self) -> int:
        return self.type.scale if isinstance(self.type, T.DecimalType) else 0

    @property
    def described(self) -> str:
        return f"{self.kind}{' distinct' * self.distinct} {self.type.simpleString()}"

    # --- what follows ---------------------------------------------------------------------------------------------

    @property
    def follows_changes(self) -> bool:
        """Return whether its value follows from whole numbers that changed rows add to and take from."""
        if self.distinct and (self.condition is not None or len(self.arguments) > 1 or not comparable(self.type)):
            return False
        if self.kind.is_extreme:
            return isinstance(self.type, _extreme_types())
        if not self.kind.has_sum:
            return self.kind is AggregateKind.COUNT
        if isinstance(self.type, whole_types()):
            return self.kind is AggregateKind.AVERAGE or fails_beyond_type(self.function)
        return (
            isinstance(self.type, T.DecimalType)
            and (self.type.precision <= _DIGITS_MAX or self.type.scale <= _SCALE_MAX)
            and fails_beyond_type(self.function)
        )

    @property
    def follows_parts(self) -> bool:
        """Return whether its value for all rows follows from its states for parts of them."""
        if self.distinct:
            return False
        if self.kind.is_extreme:
            return is_one_of(self.type, plain_types())
        if self.kind is AggregateKind.MOMENTS:
            return isinstance(self.type, T.DoubleType)
        if not self.kind.has_sum or isinstance(self.type, T.FloatType | T.DoubleType):
            return True
        if self.kind is AggregateKind.AVERAGE and isinstance(self.type, whole_types()):  # as doubles
            return True
        # In other modes what is beyond the type is no error, and a part's sum may be, where the whole's is not.
        return isinstance(self.type, (*whole_types(), T.DecimalType)) and fails_beyond_type(self.function)

    # --- of rows --------------------------------------------------------------------------------------------------

    def inputs(self, catalyst: Catalyst) -> list[Expression]:
        """Return the columns that it takes of rows."""
        found = [catalyst.alias(each, f"a{self.place}_{number}") for number, each in enumerate(self.arguments)]
        return found + ([] if self.condition is None else [catalyst.alias(self.condition, f"f{self.place}")])

    @property
    def counting(self) -> str:
        """Return the condition, as SQL over `inputs`, by which a row counts."""
        there = [f"a{self.place}_{number} IS NOT NULL" for number in range(len(self.arguments))]
        return " AND ".join([*there, *([] if self.condition is None else [f"coalesce(f{self.place}, false)"])])

    def state(self) -> list[Column]:
        """Return its state for rows that have its `inputs`."""
        arguments = [f"CASE WHEN {self.counting} THEN a{self.place}_{each} END" for each in range(len(self.arguments))]
        if self.kind is AggregateKind.EXACT:
            return [column_of_java(self.function.part(*[F.expr(each)._jc for each in arguments]))]
        as_double = self.kind is AggregateKind.AVERAGE and not isinstance(self.type, T.DecimalType)
        value = f"CAST({arguments[0]} AS DOUBLE)" if as_double else arguments[0]
        return [F.expr(each.format(value=value)) for each in AGGREGATES[self.kind].state]

    def count_and_sum(self, *, weighted: bool) -> tuple[Column, Column]:
        """Return how many rows count, and what they add up to (0, where no sum is needed).

        Rows that went are subtracted where the rows are `weighted`.
        """
        counts = F.expr(self.counting)
        count = F.sum(F.when(counts, F.col(WEIGHT) if weighted else F.lit(1).cast("long")))
        if not self.kind.has_sum:
            return count, F.lit(0)
        argument = F.col(f"a{self.place}_0")
        exact = argument if isinstance(self.type, T.DecimalType) else argument.cast("decimal(19,0)")
        return count, F.sum(F.when(counts, exact * F.col(WEIGHT).cast("decimal(10,0)") if weighted else exact))

    # --- of parts of the rows -------------------------------------------------------------------------------------

    def part(self) -> list[Column]:
        """Return the `state`, under the names that it has in a table."""
        return [column.alias(self._name(number)) for number, column in enumerate(self.state())]

    def merged(self) -> list[Column]:
        """Return the state of all rows, made of the `part` of each."""
        if self.kind is AggregateKind.EXACT:
            whole: list[Column] = [column_of_java(self.function.whole(F.col(self._name(0))._jc))]
        else:
            names = [self._name(number) for number in range(len(AGGREGATES[self.kind].state))]
            whole = [F.expr(each.format(*names)) for each in AGGREGATES[self.kind].merge]
        return [column.alias(self._name(number)) for number, column in enumerate(whole)]

    def merged_names(self) -> list[str]:
        """Return the names of the columns of `merged`."""
        return [self._name(number) for number in range(len(AGGREGATES[self.kind].merge) or 1)]

    def _name(self, number: int) -> str:
        return f"p{self.place}_{number}"

    # --- the end --------------------------------------------------------------------------------------------------

    def whole_state(self, count: str, total: str, extreme: str = "NULL") -> list[str]:
        """Return the merged state, as SQL, made of whole numbers."""
        match self.kind:
            case AggregateKind.COUNT:
                return [count]
            case AggregateKind.SUM:
                return [f"if({count} > 0, {total}, NULL)"]
            case AggregateKind.AVERAGE:
                return [total, count]
            case _:
                return [extreme]

    def total_state(self, total: Total) -> list[str]:
        """Return the merged state, as SQL, of a total."""
        extreme = "NULL" if total.extreme is None else self._written(total.extreme)
        return self.whole_state(str(total.count), self._written(total.sum), extreme)

    def _written(self, number: int) -> str:
        if isinstance(self.type, T.DateType):
            return f"date_from_unix_date({number})"
        if isinstance(self.type, T.BooleanType):
            return str(number != 0).lower()
        sign, digits = "-" * (number < 0), str(abs(number)).rjust(self.scale + 1, "0")
        place = len(digits) - self.scale
        return f"'{sign}{digits[:place]}.{digits[place:]}'" if self.scale else f"'{sign}{digits}'"

    def buffer_attributes(self, catalyst: Catalyst) -> list[Expression]:
        """Return the columns that stand for the buffers of `function` after all rows."""
        if self.kind is AggregateKind.EXACT:
            return [self.function.result()]
        return catalyst.items(self.function.aggBufferAttributes())

    def last_step(self) -> Expression:
        """Return the last step, which is Spark's own, over the `buffer_attributes`."""
        return self.function.result() if self.kind is AggregateKind.EXACT else self.function.evaluateExpression()


def read_functions(catalyst: Catalyst, aggregate: Plan, *, spark_own: bool) -> tuple[AggregateFunction, ...] | None:
    """Return the functions of an aggregate in the order of its columns, or None if one is of no kind.

    With `spark_own` functions are Spark's own also where one is taken exactly (`ExactAggregate`, in `jvm/src`), which
    else is a kind of its own.
    """
    columns = catalyst.items(aggregate.aggregateExpressions())
    found = [each for column in columns for each in _aggregates_in(catalyst, column)]
    functions = [_read(catalyst, place, each, spark_own=spark_own) for place, each in enumerate(found)]
    known = tuple(each for each in functions if each is not None)
    return known if len(known) == len(found) else None


def changing_functions(catalyst: Catalyst, aggregate: Plan) -> tuple[AggregateFunction, ...] | None:
    """Return the functions of an aggregate, or None if one does not follow changes, or if they are too many."""
    found = read_functions(catalyst, aggregate, spark_own=True)
    if found is None or len(found) > FUNCTIONS_MAX or not all(each.follows_changes for each in found):
        return None
    return found


def _aggregates_in(catalyst: Catalyst, expression: Expression) -> Iterator[Expression]:
    if catalyst.is_a(expression, "AggregateExpression"):
        yield expression
        return
    for each in catalyst.children(expression):
        yield from _aggregates_in(catalyst, each)


def _read(catalyst: Catalyst, place: int, aggregate: Expression, *, spark_own: bool) -> AggregateFunction | None:
    function = aggregate.aggregateFunction()
    if spark_own and kind_of(function) is AggregateKind.EXACT:
        function = function.function()
    kind, arguments = kind_of(function), tuple(catalyst.children(function))
    if kind is None or not arguments:
        return None
    condition = aggregate.filter().get() if aggregate.filter().isDefined() else None
    kind_of_first = catalyst.type_of(arguments[0])
    return AggregateFunction(place, kind, function, arguments, kind_of_first, condition, bool(aggregate.isDistinct()))


def fails_beyond_type(function: Expression) -> bool:
    """Return whether a sum or an average that is too large for its type is an error, and not null or another value."""
    average = kind_of(function) is AggregateKind.AVERAGE
    mode = function.evalMode() if average else function.evalContext().evalMode()
    return str(mode.toString()) == "ANSI"


def stored_groups(
    rows: DataFrame, keys: Sequence[ColumnOrName], number: Column, sums: Iterable[tuple[Column, Column, str]]
) -> DataFrame:
    """Return groups as they are stored: the `keys`, the `number` of rows, and for each of `sums` how many rows count,
    and what they add up to, in a type of SQL.
    """
    measures = [number]
    for count, total, kind in sums:
        measures += [F.coalesce(count, F.lit(0).cast("long")), F.coalesce(total, F.lit(0)).cast(kind)]
    named = zip(measures, number_names(len(measures) // 2), strict=True)
    return rows.groupBy(*keys).agg(*[column.alias(name) for column, name in named])


def finished_rows(
    catalyst: Catalyst,
    aggregate: Plan,
    functions: Sequence[AggregateFunction],
    states: Sequence[Sequence[str]],
    select: Callable[[list[str]], Plan],
    keys: Sequence[tuple[str, Expression]] = (),
) -> Plan:
    """Return the aggregate's rows, under its ids.

    `states` has for each function its merged state, SQL over rows of which `select` makes a plan. `keys` are the
    columns of these rows that are the aggregate's keys.
    """
    columns, wanted = [name for name, _ in keys], [key for _, key in keys]
    for function, state in zip(functions, states, strict=True):
        attributes, buffers = function.buffer_attributes(catalyst), AGGREGATES[function.kind].buffers
        pairs = zip(buffers, attributes, strict=False)  # the second of a sum is that of a decimal
        columns += [f"CAST({sql.format(*state)} AS {attribute.dataType().sql()})" for sql, attribute in pairs]
        wanted += attributes
    named = [f"{sql} AS b{number}" for number, sql in enumerate(columns)]
    rows, last = catalyst.renamed_as(select(named), wanted), iter(functions)
    expressions = catalyst.items(aggregate.aggregateExpressions())
    return catalyst.project([_finished(catalyst, each, last) for each in expressions], rows)


def _finished(catalyst: Catalyst, expression: Expression, functions: Iterator[AggregateFunction]) -> Expression:
    """Return an expression with its functions replaced; they are met in the same order as when they were read."""
    if catalyst.is_a(expression, "AggregateExpression"):
        return next(functions).last_step()
    return catalyst.with_arguments(expression, lambda each: _finished(catalyst, each, functions))
