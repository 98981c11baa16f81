"""Relations with a part of their rows: those that have one of some keys; and the expressions of operators.

All is pure: each function returns another relation, and shares with the given one what stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from iscp.algebra.algebra import (
    Expand,
    Expr,
    Filter,
    Group,
    Join,
    JoinKind,
    Opaque,
    Project,
    Rel,
    Sort,
    Table,
    TypedColumn,
    Union,
    Windowed,
)

LEFT, RIGHT = 0, 1
_PASSES_LEFT = frozenset(
    {
        *(JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT_OUTER),
        *(JoinKind.LEFT_SINGLE, JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI, JoinKind.EXISTENCE),
    }
)
_PASSES_RIGHT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT_OUTER})
"""The joins that pass a condition on columns of one side down to that side."""

Keys = Mapping[int, tuple[Expr, ...]]
"""The expressions by which an operator works key by key, for the place of each input that has them."""


class UnplannedError(Exception):
    """A query of whose changes there is no plan: the message says why."""


# --- expressions ------------------------------------------------------------------------------------------------------


def named(value: Expr, column: TypedColumn) -> Expr:
    """Return the item that is this column of the value."""
    return Expr("Alias", (value,), column.type, (column.id, column.name))


def all_of(conditions: Sequence[Expr]) -> Expr:
    return conditions[0] if len(conditions) == 1 else Expr("And", tuple(conditions), "boolean")


def same_values(values: Sequence[Expr], columns: Sequence[TypedColumn]) -> list[Expr]:
    """Return the conditions that values are those of columns; nulls are equal."""
    return [Expr("EqualNullSafe", (a, b.value), "boolean") for a, b in zip(values, columns, strict=True)]


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """Return the conditions that all have to hold."""
    return condition.args if condition.op == "And" else (condition,)


def over_rows(above: Sequence[Rel], rows: Rel) -> Rel:
    """Return operators, the highest first and each of one input, over other rows."""
    for each in reversed(above):
        rows = replace(each, inputs=(rows,))
    return rows


def with_plans(expression: Expr, change: Callable[[Rel], Rel]) -> Expr:
    """Return the expression with the plans of its subqueries changed; the same object if all stay as they are."""
    if not expression.plans:
        return expression
    args = tuple(with_plans(each, change) for each in expression.args)
    plan = None if expression.plan is None else change(expression.plan)
    same = plan is expression.plan and all(a is b for a, b in zip(args, expression.args, strict=True))
    return expression if same else replace(expression, args=args, plan=plan)


def with_expressions(relation: Rel, change: Callable[[Expr], Expr]) -> Rel:
    """Return the operator with its own expressions changed."""
    match relation:
        case Project():
            return replace(relation, items=tuple(map(change, relation.items)))
        case Filter():
            return replace(relation, condition=change(relation.condition))
        case Group():
            return replace(relation, keys=tuple(map(change, relation.keys)), items=tuple(map(change, relation.items)))
        case Join(condition=Expr() as condition):
            return replace(relation, condition=change(condition))
        case Sort():
            return replace(relation, order=tuple(map(change, relation.order)))
        case Windowed():
            items, partition, order = (
                tuple(map(change, each)) for each in (relation.items, relation.partition, relation.order)
            )
            return replace(relation, items=items, partition=partition, order=order)
        case Expand():
            return replace(relation, rows=tuple(tuple(map(change, row)) for row in relation.rows))
        case _:
            raise UnplannedError(f"a subquery within {type(relation).__name__}")


def with_leaves(relation: Rel, leaves: Mapping[int, Table]) -> Rel:
    """Return the query with leaves in the place of its operators of these numbers; the same object if it has none."""
    if relation.number in leaves:
        return leaves[relation.number]
    inputs = tuple(with_leaves(each, leaves) for each in relation.inputs)
    values = [with_leaves(each, leaves) for each in relation.subqueries]
    if any(now is not before for now, before in zip(values, relation.subqueries, strict=True)):
        relation = with_expressions(relation, lambda each: with_plans(each, lambda plan: with_leaves(plan, leaves)))
    same = all(now is before for now, before in zip(inputs, relation.inputs, strict=True))
    return relation if same else replace(relation, inputs=inputs)


# --- keys -------------------------------------------------------------------------------------------------------------


def grouped_by(relation: Rel) -> tuple[Expr, ...]:
    """Return the expressions by which the operator has groups or partitions; it may have none."""
    if isinstance(relation, Group | Opaque):
        return relation.keys
    return relation.partition if isinstance(relation, Windowed) else ()


def own_keys(relation: Rel) -> tuple[Expr, ...]:
    """Return the columns by which the operator has groups or partitions; none if some are no columns."""
    found = grouped_by(relation)
    return found if all(each.op == "Column" for each in found) else ()


def passed_columns(items: Sequence[Expr]) -> dict[int, int]:
    """Return the ids of items that are columns of the input, or give one another name, each with the id there."""
    inner = [(each, each.args[0] if each.op == "Alias" else each) for each in items]
    return {each.column.id: found.column.id for each, found in inner if found.op == "Column"}


def equal_sides(join: Join) -> Keys | None:
    """Return what is equal in both sides of rows that meet, or None if nothing is."""
    parts = () if join.condition is None else conjuncts(join.condition)
    left, right = ({each.id for each in side.columns} for side in join.inputs)
    pairs = []
    for each in parts:
        if each.op in ("EqualTo", "EqualNullSafe"):
            one, other = each.args
            for first, second in ((one, other), (other, one)):
                if first.references and second.references and first.references <= left and second.references <= right:
                    pairs.append((first, second))
                    break
    return {LEFT: tuple(a for a, _ in pairs), RIGHT: tuple(b for _, b in pairs)} if pairs else None


def reduced_to_keys(relation: Rel, keys: Sequence[Expr], found: Rel, columns: Sequence[TypedColumn]) -> Rel:
    """Return the rows that have one of some keys; the condition goes down to where there are fewest rows."""

    def below(place: int, expressions: Sequence[Expr]) -> Rel:
        inputs = [*relation.inputs]
        inputs[place] = reduced_to_keys(inputs[place], expressions, found, columns)
        return replace(relation, inputs=tuple(inputs))

    plain = all(each.op == "Column" for each in keys)
    below_ids = {each.id for each in relation.inputs[0].columns} if len(relation.inputs) == 1 else frozenset()
    ids = frozenset().union(*(each.references for each in keys))
    match relation:
        case Filter():
            return below(0, keys)
        case Project() if plain:
            passed = passed_columns(relation.items)
            if all(number in passed for number in ids):
                within = {each.id: each for each in relation.inputs[0].columns}
                return below(0, [within[passed[each.column.id]].value for each in keys])
        case Union() if plain:
            return _reduced_union(relation, keys, found, columns)
        case Join():
            left, right = ({each.id for each in side.columns} for side in relation.inputs)
            if ids <= left and relation.kind in _PASSES_LEFT:
                return below(LEFT, keys)
            if ids <= right and relation.kind in _PASSES_RIGHT:
                return below(RIGHT, keys)
            relation = _reduced_sides(relation, keys, found, columns)
        case Opaque() if relation.linear and ids <= below_ids:
            return below(0, keys)
        case Windowed() | Group() if plain and ids <= {each.column.id for each in own_keys(relation)}:
            return below(0, keys)
    return Join((relation, found), JoinKind.LEFT_SEMI, all_of(same_values(keys, columns)))


def _reduced_sides(join: Join, keys: Sequence[Expr], found: Rel, columns: Sequence[TypedColumn]) -> Join:
    """Return a join whose sides have one of the values of those keys that are theirs alone."""
    inputs = [*join.inputs]
    for place, passing in ((LEFT, _PASSES_LEFT), (RIGHT, _PASSES_RIGHT)):
        ids = {each.id for each in inputs[place].columns}
        own = [pair for pair in zip(keys, columns, strict=True) if pair[0].references and pair[0].references <= ids]
        if own and join.kind in passing:
            inputs[place] = reduced_to_keys(inputs[place], [key for key, _ in own], found, [each for _, each in own])
    return replace(join, inputs=tuple(inputs))


def _reduced_union(union: Union, keys: Sequence[Expr], found: Rel, columns: Sequence[TypedColumn]) -> Rel:
    places = {each.id: place for place, each in enumerate(union.fields)}
    inputs = [
        reduced_to_keys(each, [each.columns[places[key.column.id]].value for key in keys], found, columns)
        for each in union.inputs
    ]
    return replace(union, inputs=tuple(inputs))
