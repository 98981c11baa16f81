"""Estimate what a change of a source table costs at each operator of a query, from the numbers of rows of tables alone.

Nothing is known of values: each changed row passes every filter, and meets about one row in a join; groups are as many
as rows. So the estimate says which tables are read besides the changed rows, and how large these are, not how long it
takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from iscp.core.query.query_explanation import CHANGED_ROWS, ChangeCost, OperatorUpkeep
from iscp.core.query.query_plan import Operator, OperatorKind, upkeep_of
from iscp.core.values.progress import UNKNOWN


class CostEstimator:
    """An estimator for tables of so many `rows`, by their names in the query; `known` has the numbers of stored rows,
    by the operator that gives them.

    A number is UNKNOWN wherever a table's log does not say it.
    """

    def __init__(self, rows: Mapping[str, int], known: Mapping[Operator, int]) -> None:
        self._rows = rows
        self._known = known

    def costs(self, operator: Operator, upkeep: OperatorUpkeep) -> tuple[ChangeCost, ...]:
        """Return one cost for each table that the operator reads, in the order of their names."""
        return tuple(self._cost(operator, upkeep, table) for table in sorted(operator.tables()))

    def _cost(self, operator: Operator, upkeep: OperatorUpkeep, table: str) -> ChangeCost:
        if operator.kind is OperatorKind.TABLE:
            return ChangeCost(table, CHANGED_ROWS, 0)
        changed = _total(self._changed(each, table) for each in operator.inputs)
        if any(table in each.tables() for each in operator.subqueries):
            return ChangeCost(table, changed, self._read(operator))
        match upkeep:
            case OperatorUpkeep.LINEAR | OperatorUpkeep.STATE:
                return ChangeCost(table, changed, 0)
            case OperatorUpkeep.JOINED:
                apart = [each for each in operator.inputs if table not in each.tables()]
                return ChangeCost(table, changed, _total(map(self._rows_of, apart or operator.inputs)))
            case _:
                return ChangeCost(table, changed, self._read(operator))

    def _read(self, operator: Operator) -> int:
        return _total(map(self._rows_of, operator.inputs))

    def _changed(self, operator: Operator, table: str) -> int:
        """Return how many rows of its output change."""
        if table not in operator.tables():
            return 0
        if operator.kind is OperatorKind.TABLE:
            return CHANGED_ROWS
        by_value = any(table in each.tables() for each in operator.subqueries)
        if by_value or upkeep_of(operator) is OperatorUpkeep.WHOLE:
            return self._rows_of(operator)
        return _total(self._changed(each, table) for each in operator.inputs)

    def _rows_of(self, operator: Operator) -> int:
        if (known := self._known.get(operator, UNKNOWN)) >= 0:
            return known
        inputs = [self._rows_of(each) for each in operator.inputs]
        match operator.kind:
            case OperatorKind.TABLE:
                return self._rows.get(operator.table, UNKNOWN)
            case OperatorKind.ROWS:
                return 1
            case OperatorKind.AGGREGATE if not operator.keyed:
                return 1
            case OperatorKind.JOIN if UNKNOWN not in inputs:
                return max(inputs) if operator.keyed else prod(inputs)
            case _:
                return _total(inputs)


def _total(numbers: Iterable[int]) -> int:
    found = list(numbers)
    return UNKNOWN if UNKNOWN in found else sum(found)
