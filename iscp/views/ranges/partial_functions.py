"""What a function of an aggregate comes to for a part of its rows, and how that of several parts is put together.

After Spark's own partial aggregation: of each part is kept what the function holds after its rows, and the last step is
Spark's. So sums of doubles are those that Spark gives too, in some order of a table's files; exact ones are the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING, assert_never

from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.classic.column import Column as ClassicColumn

from iscp.views.catalyst.catalyst import Catalyst, Expression
from iscp.views.catalyst.total_functions import EXACT, WHOLE, fails_beyond_type, last_step

if TYPE_CHECKING:
    from pyspark.sql import Column


class PartialKind(Enum):
    COUNT = "count"
    SUM = "sum"
    AVERAGE = "average"
    LEAST = "least"
    MOST = "most"
    MOMENTS = "moments"
    EXACT = "exact"
    """What is kept of a part says all of it (`ExactAggregate`, in `jvm/src`)."""


_KINDS = {
    "Count": PartialKind.COUNT,
    "Sum": PartialKind.SUM,
    "Average": PartialKind.AVERAGE,
    "Min": PartialKind.LEAST,
    "Max": PartialKind.MOST,
    "StddevPop": PartialKind.MOMENTS,
    "StddevSamp": PartialKind.MOMENTS,
    "VariancePop": PartialKind.MOMENTS,
    "VarianceSamp": PartialKind.MOMENTS,
    EXACT: PartialKind.EXACT,
}
_PLAIN = (
    *WHOLE,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.BooleanType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.BinaryType,
)
_NONE = "named_struct('n', 0D, 'mean', 0D, 'm2', 0D)"
# As CentralMomentAgg of Spark merges what two parts hold, after Chan, Golub and LeVeque.
_MERGED = (
    "if(x.n + y.n = 0D, x, named_struct('n', x.n + y.n, 'mean', x.mean + (y.mean - x.mean) * y.n / (x.n + y.n), "
    "'m2', x.m2 + y.m2 + (y.mean - x.mean) * (y.mean - x.mean) * x.n * y.n / (x.n + y.n)))"
)


def is_plain(kind: T.DataType) -> bool:
    """Whether values of it are written to a table, read and grouped as they are."""
    return isinstance(kind, _PLAIN) or (isinstance(kind, T.StringType) and kind.isUTF8BinaryCollation())


@dataclass(frozen=True, slots=True, eq=False)
class PartialFunction:
    """`function`: Spark's own. `arguments`: none may be null in a row that counts; `type` is that of the first.

    `condition`: of FILTER (WHERE …). `place`: among the aggregate's functions.
    """

    place: int
    kind: PartialKind
    function: Expression
    arguments: tuple[Expression, ...]
    type: T.DataType
    condition: Expression | None

    def inputs(self, catalyst: Catalyst) -> list[Expression]:
        """Of rows."""
        found = [catalyst.alias(each, f"a{self.place}_{number}") for number, each in enumerate(self.arguments)]
        return found + ([] if self.condition is None else [catalyst.alias(self.condition, f"f{self.place}")])

    def held(self, catalyst: Catalyst) -> list[Expression]:
        """The columns that stand for what `function` holds after all rows."""
        if self.kind is PartialKind.EXACT:
            return [self.function.result()]
        return catalyst.items(self.function.aggBufferAttributes())

    def partials(self) -> list[Column]:
        """Of the `inputs` of some rows."""
        value = F.when(self._counts(), F.col(f"a{self.place}_0"))
        count, total = F.count(F.when(self._counts(), F.lit(1))), F.sum(value)
        match self.kind:
            case PartialKind.COUNT:
                found = [count]
            case PartialKind.SUM:
                found = [total]
            case PartialKind.AVERAGE:
                found = [total if isinstance(self.type, T.DecimalType) else F.sum(value.cast("double")), count]
            case PartialKind.LEAST:
                found = [F.min(value)]
            case PartialKind.MOST:
                found = [F.max(value)]
            case PartialKind.MOMENTS:
                number = count.cast("double")
                found = [number, F.avg(value), F.var_pop(value) * number]
            case PartialKind.EXACT:
                values = [F.when(self._counts(), F.col(f"a{self.place}_{each}")) for each in range(len(self.arguments))]
                found = [ClassicColumn(self.function.part(*[each._jc for each in values]))]
            case _:
                assert_never(self.kind)
        return [column.alias(name) for column, name in zip(found, self._names(len(found)), strict=True)]

    def merged(self) -> list[Column]:
        """Of several `partials`, each under its name."""
        match self.kind:
            case PartialKind.LEAST:
                return [F.min(self._name(0)).alias(self._name(0))]
            case PartialKind.MOST:
                return [F.max(self._name(0)).alias(self._name(0))]
            case PartialKind.MOMENTS:
                parts = [f"coalesce({name}, 0D)" for name in self._names(3)]
                each = f"named_struct('n', {parts[0]}, 'mean', {parts[1]}, 'm2', {parts[2]})"
                moments = F.expr(f"aggregate(collect_list({each}), {_NONE}, (x, y) -> {_MERGED})")
                return [moments.alias(self._name(0))]
            case PartialKind.COUNT | PartialKind.SUM:
                return [F.sum(self._name(0)).alias(self._name(0))]
            case PartialKind.AVERAGE:
                return [F.sum(name).alias(name) for name in self._names(2)]
            case PartialKind.EXACT:
                return [ClassicColumn(self.function.whole(F.col(self._name(0))._jc)).alias(self._name(0))]
            case _:
                assert_never(self.kind)

    def buffers(self, attributes: list[Expression]) -> list[Column]:
        """What the function holds after all rows, of what is `merged`; `attributes`: those of `held`."""
        first, second = (F.col(name) for name in self._names(2))
        match self.kind:
            case PartialKind.COUNT:
                values = [F.coalesce(first, F.lit(0))]
            case PartialKind.SUM:  # of a decimal it says besides whether there was none
                values = [first, first.isNull()]
            case PartialKind.AVERAGE:
                values = [F.coalesce(first, F.lit(0)), F.coalesce(second, F.lit(0))]
            case PartialKind.LEAST | PartialKind.MOST | PartialKind.EXACT:
                values = [first]
            case PartialKind.MOMENTS:
                values = [first[name] for name in ("n", "mean", "m2")]
            case _:
                assert_never(self.kind)
        return [value.cast(each.dataType().sql()) for value, each in zip(values, attributes, strict=False)]

    def _counts(self) -> Column:
        there = [F.col(f"a{self.place}_{number}").isNotNull() for number in range(len(self.arguments))]
        if self.condition is not None:
            there.append(F.coalesce(F.col(f"f{self.place}"), F.lit(False)))
        return reduce(lambda one, other: one & other, there)

    def _name(self, number: int) -> str:
        return f"p{self.place}_{number}"

    def _names(self, number: int) -> list[str]:
        return [self._name(each) for each in range(number)]


def last_of_parts(aggregate: Expression) -> Expression:
    """The last step of a function, over the columns of `held`."""
    function = aggregate.aggregateFunction()
    exact = str(function.getClass().getSimpleName()) == EXACT
    return function.result() if exact else last_step(aggregate)


def partial_function(catalyst: Catalyst, place: int, aggregate: Expression) -> PartialFunction | None:
    """None where what it comes to for parts of its rows does not say what it comes to for all of them."""
    function = aggregate.aggregateFunction()
    kind = _KINDS.get(str(function.getClass().getSimpleName()))
    arguments = tuple(catalyst.children(function))
    if kind is None or not arguments or aggregate.isDistinct():
        return None
    condition = aggregate.filter().get() if aggregate.filter().isDefined() else None
    found = PartialFunction(place, kind, function, arguments, catalyst.type_of(arguments[0]), condition)
    return found if _can_be_merged(found) else None


def _can_be_merged(found: PartialFunction) -> bool:
    match found.kind:
        case PartialKind.COUNT | PartialKind.EXACT:
            return True
        case PartialKind.LEAST | PartialKind.MOST:
            return is_plain(found.type)
        case PartialKind.MOMENTS:
            return isinstance(found.type, T.DoubleType)
        case PartialKind.SUM | PartialKind.AVERAGE if isinstance(found.type, (T.FloatType, T.DoubleType)):
            return True
        case PartialKind.AVERAGE if isinstance(found.type, WHOLE):  # as doubles
            return True
        # In other modes what is beyond the type is no error, and a part's sum may be, where the whole's is not.
        case PartialKind.SUM | PartialKind.AVERAGE if isinstance(found.type, (*WHOLE, T.DecimalType)):
            return fails_beyond_type(found.function)
        case _:
            return False
