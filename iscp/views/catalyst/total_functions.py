"""The functions of an aggregate without GROUP BY, where its one row follows from totals (`totals`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import types as T

from iscp.adapters.delta.rows.column_kinds import comparable
from iscp.core.values.totals import Total, TotalKind, Totals
from iscp.views.catalyst.catalyst import Catalyst, Expression, Plan

FUNCTIONS_MAX = 64
"""Functions of one aggregate whose totals are kept, in each commit of the view; one with more is recomputed."""

_DIGITS_MAX, _SCALE_MAX = 27, 6
"""Of a decimal that Spark multiplies by a row's weight exactly: one of the two is enough."""

_KINDS = {
    "Count": TotalKind.COUNT,
    "Sum": TotalKind.SUM,
    "Average": TotalKind.AVERAGE,
    "Max": TotalKind.MOST,
    "Min": TotalKind.LEAST,
}
EXACT = "ExactAggregate"
WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_EXTREMES = (*WHOLE, T.DecimalType, T.DateType, T.BooleanType)


@dataclass(frozen=True, slots=True, eq=False)
class TotalFunction:
    """`function`: Spark's own. `arguments`: none of them may be null in a row that counts; `type` is that of the first.
    `condition`: of FILTER (WHERE …). `distinct`: equal values count once.
    """

    kind: TotalKind
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


def total_functions(catalyst: Catalyst, aggregate: Plan) -> tuple[TotalFunction, ...]:
    """Empty where one of them does not follow from totals."""
    found = [
        _total_function(catalyst, each)
        for column in catalyst.items(aggregate.aggregateExpressions())
        for each in aggregates_of(catalyst, column)
    ]
    if len(found) > FUNCTIONS_MAX:
        return ()
    known = tuple(each for each in found if each is not None)
    return known if len(known) == len(found) else ()


def aggregates_of(catalyst: Catalyst, expression: Expression) -> Iterator[Expression]:
    """In the order in which they are met everywhere here."""
    if catalyst.is_a(expression, "AggregateExpression"):
        yield expression
        return
    for each in catalyst.children(expression):
        yield from aggregates_of(catalyst, each)


def spark_function(aggregate: Expression) -> Expression:
    """Spark's own, also where it is taken exactly (`ExactAggregate`, in `jvm/src`)."""
    function = aggregate.aggregateFunction()
    return function.function() if str(function.getClass().getSimpleName()) == EXACT else function


def _total_function(catalyst: Catalyst, aggregate: Expression) -> TotalFunction | None:
    function = spark_function(aggregate)
    kind = _KINDS.get(str(function.getClass().getSimpleName()))
    arguments = tuple(catalyst.children(function))
    if kind is None or not arguments:
        return None
    condition = aggregate.filter().get() if aggregate.filter().isDefined() else None
    distinct = bool(aggregate.isDistinct())
    found = TotalFunction(kind, function, arguments, catalyst.type_of(arguments[0]), condition, distinct)
    return found if _follows(found) else None


def _follows(found: TotalFunction) -> bool:
    if found.distinct and (found.condition is not None or len(found.arguments) > 1 or not comparable(found.type)):
        return False
    match found.kind:
        case TotalKind.COUNT:
            return True
        case TotalKind.MOST | TotalKind.LEAST:
            return isinstance(found.type, _EXTREMES)
        case TotalKind.SUM if isinstance(found.type, WHOLE):
            return fails_beyond_type(found.function)
        case _:
            return isinstance(found.type, WHOLE) or (
                isinstance(found.type, T.DecimalType)
                and (found.type.precision <= _DIGITS_MAX or found.type.scale <= _SCALE_MAX)
                and fails_beyond_type(found.function)
            )


def fails_beyond_type(function: Expression) -> bool:
    """Whether a sum or an average that is too large for its type is an error, and not null or another value."""
    average = str(function.getClass().getSimpleName()) == "Average"
    mode = function.evalMode() if average else function.evalContext().evalMode()
    return str(mode.toString()) == "ANSI"


def total_row(catalyst: Catalyst, aggregate: Plan, functions: Sequence[TotalFunction], totals: Totals) -> Plan:
    """The aggregate's one row, under its ids: Spark's own last step of each function, over what they have come to."""
    attributes, texts = [], []
    for each, total in zip(functions, totals, strict=True):
        buffers = catalyst.items(each.function.aggBufferAttributes())
        attributes += buffers
        values = _buffers(each, total, len(buffers))
        texts += [_literal(text, buffer) for text, buffer in zip(values, buffers, strict=True)]
    row = catalyst.renamed_as(catalyst.one_row(texts), attributes)
    columns = [finished(catalyst, each) for each in catalyst.items(aggregate.aggregateExpressions())]
    return catalyst.project(columns, row)


def _buffers(function: TotalFunction, total: Total, number: int) -> list[str | None]:
    """What Spark's function holds after all rows, as texts."""
    match function.kind:
        case TotalKind.COUNT:
            return [str(total.count)]
        case TotalKind.SUM:  # of a decimal it says besides whether there was none
            return [_written(total.sum, function) if total.count else None, str(not total.count)][:number]
        case TotalKind.AVERAGE:
            return [_written(total.sum, function), str(total.count)]
        case _:
            return [None if total.extreme is None else _written(total.extreme, function)]


def _written(number: int, function: TotalFunction) -> str:
    sign, digits = "-" * (number < 0), str(abs(number)).rjust(function.scale + 1, "0")
    place = len(digits) - function.scale
    return f"{sign}{digits[:place]}.{digits[place:]}" if function.scale else f"{sign}{digits}"


def _literal(text: str | None, buffer: Expression) -> str:
    kind = buffer.dataType().sql()
    if text is None:
        return f"CAST(NULL AS {kind})"
    if kind == "DATE":
        return f"date_from_unix_date({text})"
    if kind == "BOOLEAN" and text.lstrip("-").isdigit():
        text = str(text != "0")
    return f"CAST('{text}' AS {kind})"


def last_step(aggregate: Expression) -> Expression:
    """Spark's own, over what the function holds after all rows."""
    return aggregate.aggregateFunction().evaluateExpression()


def finished(
    catalyst: Catalyst, expression: Expression, last: Callable[[Expression], Expression] = last_step
) -> Expression:
    """With the last step of each function."""
    if catalyst.is_a(expression, "AggregateExpression"):
        return last(expression)
    return catalyst.with_arguments(expression, lambda each: finished(catalyst, each, last))
