"""Count the bytes of tables that are read to refresh a query by its changes, and to compute all of it.

The numbers follow from the shape of the query and from the bytes of its tables alone, by the ways of `query_plan`: what
is joined with changed rows is read once, and what is computed for the keys in them is read before and after. Changed
rows themselves are few beside that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from iscp.core.query.query_explanation import OperatorUpkeep
from iscp.core.query.query_plan import JoinSide, Operator, OperatorKind, upkeep_of

_BEFORE_AND_AFTER = 2


@dataclass(frozen=True, slots=True)
class ScanEstimator:
    """An estimator for tables of so many bytes (`sizes`, by their names in the query), of which `changed` have
    changed.
    """

    sizes: Mapping[str, int]
    changed: Collection[str]

    def all_rows(self, operator: Operator) -> int:
        """Return the bytes to compute the operator's rows; a table that is there twice is read twice."""
        return sum(self.sizes[each.table] for _, each in operator.walk() if each.table)

    def rows_now(self, operator: Operator) -> int:
        """Return the bytes to compute, for keys of changed rows, what the operator's rows are now, but not what they
        were.
        """
        return self.changes(operator) + (self.all_rows(operator) if self._has_changed(operator) else 0)

    def changes(self, operator: Operator) -> int:
        """Return the bytes to compute how the operator's rows change."""
        if not self._has_changed(operator):
            return 0
        below = sum(map(self.changes, (*operator.inputs, *operator.subqueries)))
        match upkeep_of(operator):
            case OperatorUpkeep.JOINED:
                return below + self._other_sides(operator)
            case OperatorUpkeep.TOUCHED | OperatorUpkeep.WHOLE if self._is_linear(operator):
                return below + self._other_sides(operator)
            case OperatorUpkeep.TOUCHED | OperatorUpkeep.WHOLE:
                return below + _BEFORE_AND_AFTER * sum(map(self.all_rows, operator.inputs))
            case OperatorUpkeep.STATE:
                return below + _BEFORE_AND_AFTER * operator.distincts * sum(map(self.all_rows, operator.inputs))
            case _:
                return below

    def _is_linear(self, join: Operator) -> bool:
        """Return whether only that side has changed in which the join is linear."""
        if join.kind is not OperatorKind.JOIN or join.linear_in is JoinSide.NEITHER:
            return False
        other = join.inputs[1 if join.linear_in is JoinSide.LEFT else 0]
        return not self._has_changed(other)

    def _other_sides(self, join: Operator) -> int:
        left, right = join.inputs
        return sum(self.all_rows(other) for side, other in ((left, right), (right, left)) if self._has_changed(side))

    def _has_changed(self, operator: Operator) -> bool:
        return not operator.tables().isdisjoint(self.changed)
