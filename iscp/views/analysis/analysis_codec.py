"""Write an analyzed query as data that goes from one process to another, and read it without trusting it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from iscp.core.query.query_plan import Operator, QueryShape


@dataclass(frozen=True, slots=True)
class _FlatShape:
    """A QueryShape whose operators have no others in them.

    Each stands behind those that it is made of, whose places `inputs` and `subqueries` have. A tree would be as deep in
    JSON as the query is.
    """

    operators: tuple[Operator, ...]
    inputs: tuple[tuple[int, ...], ...]
    subqueries: tuple[tuple[int, ...], ...]
    root: int
    stored: int | None
    schema_json: str
    named: frozenset[str]
    by_group: bool
    whole: Mapping[str, str]
    undecided: str
    by_spark: tuple[str, ...]
    statements: tuple[str, ...]


_FLAT = TypeAdapter(_FlatShape)


def shape_to_json(shape: QueryShape) -> bytes:
    trees = [shape.root] if shape.stored is None else [shape.root, shape.stored]
    # Parents come before their children there.
    operators = [each for tree in reversed(trees) for _, each in reversed([*tree.walk()])]
    places = {id(each): place for place, each in reversed([*enumerate(operators)])}
    return _FLAT.dump_json(
        _FlatShape(
            tuple(replace(each, inputs=(), subqueries=()) for each in operators),
            tuple(tuple(places[id(one)] for one in each.inputs) for each in operators),
            tuple(tuple(places[id(one)] for one in each.subqueries) for each in operators),
            places[id(shape.root)],
            None if shape.stored is None else places[id(shape.stored)],
            shape.schema_json,
            shape.named,
            shape.by_group,
            shape.whole,
            shape.undecided,
            shape.by_spark,
            shape.statements,
        )
    )


def shape_from_json(content: bytes) -> QueryShape:
    """Return the shape that JSON describes; raise ValueError if it describes none."""
    flat = _FLAT.validate_json(content)
    made: list[Operator] = []
    try:
        for operator, inputs, subqueries in zip(flat.operators, flat.inputs, flat.subqueries, strict=True):
            made.append(
                replace(
                    operator,
                    inputs=tuple(made[place] for place in inputs),
                    subqueries=tuple(made[place] for place in subqueries),
                )
            )
        root, stored = made[flat.root], None if flat.stored is None else made[flat.stored]
    except IndexError as error:
        raise ValueError("names an operator that is not there") from error
    return QueryShape(
        root,
        flat.schema_json,
        flat.named,
        stored,
        flat.by_group,
        flat.whole,
        flat.undecided,
        flat.by_spark,
        flat.statements,
    )
