"""Explain how a view follows changes, or would: its operators, what a change costs at each, and what is stored
already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from iscp.core.query.change_costs import CostEstimator
from iscp.core.query.query_explanation import (
    CHANGED_ROWS,
    ExplainedOperator,
    KeptTable,
    OperatorUpkeep,
    QueryExplanation,
)
from iscp.core.query.query_plan import (
    EXACT_REMEDY,
    Operator,
    OperatorKind,
    QueryShape,
    explain_operators,
    undecided_reason,
    upkeep_of,
)
from iscp.core.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.core.values.errors import StorageError, TableNotFound
from iscp.core.values.progress import UNKNOWN, TableSize
from iscp.ports.catalog import Catalog

_RESULT, _STATE = "the result", "what is kept besides"


def explain_view(shape: QueryShape, tables: Mapping[str, str], target: str, catalog: Catalog) -> QueryExplanation:
    """Explain a view. `tables` are URIs by their names in the query; `target` is empty where there is none yet."""
    found = {name: _size_of(uri, catalog) for name, uri in tables.items()}
    sizes = {name: size for name, size in found.items() if size is not None and size.bytes >= 0}
    stored = _stored_tables(target, catalog) if target else ()
    known = {}
    for each in stored:
        operator = shape.root if each.holds == _RESULT else shape.stored
        if operator is not None:
            known[operator] = each.size.rows
    estimator = CostEstimator({name: size.rows for name, size in sizes.items()}, known)
    nodes = [operator for _, operator in shape.root.walk()]
    explained = zip(nodes, explain_operators(shape.root), strict=True)
    return QueryExplanation(
        operators=tuple(_with_state(operator, each, shape, estimator) for operator, each in explained),
        columns=_columns(shape),
        tables=tables,
        notes=tuple(_notes(shape)),
        sizes=sizes,
        kept=stored,
        statements=shape.statements,
    )


def _with_state(
    operator: Operator, each: ExplainedOperator, shape: QueryShape, estimator: CostEstimator
) -> ExplainedOperator:
    if shape.by_group and operator is (shape.stored or shape.root):
        each = replace(each, upkeep=OperatorUpkeep.STATE, state="each group's count and sums")
    elif operator.adds_up:
        each = replace(each, state="its counts, sums and extremes, in the view's commits")
    elif operator is shape.stored:
        each = replace(each, state="its rows")
    if shape.undecided:
        each = replace(each, upkeep=OperatorUpkeep.WHOLE)
        if operator is shape.root:
            each = replace(each, reason=undecided_reason(shape.undecided), remedy=EXACT_REMEDY)
    return replace(each, costs=estimator.costs(operator, each.upkeep))


def _columns(shape: QueryShape) -> dict[str, str]:
    fields = json.loads(shape.schema_json)["fields"]
    kinds = {field["name"]: field["type"] for field in fields}
    return {name: kind if isinstance(kind, str) else kind["type"] for name, kind in kinds.items()}


def _stored_tables(target: str, catalog: Catalog) -> tuple[KeptTable, ...]:
    places = {target: _RESULT, target + VIEW_STATE_SUFFIX: _STATE}
    sizes = {uri: _size_of(uri, catalog) for uri in places}
    return tuple(KeptTable(uri, places[uri], size) for uri, size in sizes.items() if size is not None)


def _size_of(uri: str, catalog: Catalog) -> TableSize | None:
    """Return the size of a table, or None if there is no table."""
    try:
        return catalog.size(uri)
    except TableNotFound:
        return None
    except StorageError:
        return TableSize(UNKNOWN, UNKNOWN)


def _notes(shape: QueryShape) -> list[str]:
    kinds = {each.kind for _, each in shape.root.walk() if upkeep_of(each) is OperatorUpkeep.WHOLE}
    notes = [
        f"Costs are estimates for {CHANGED_ROWS:,} changed rows of a table, from the rows of tables alone: each passes "
        "every filter, and meets one row in a join."
    ]
    if shape.by_group:
        notes.append("Where many rows change the groups are recomputed for the keys that changed, by Spark.")
    if OperatorKind.LIMIT in kinds:
        notes.append(
            "Rows that tie in ORDER BY at the limit are ordered by all their columns; Spark alone may take others."
        )
    for name, why in shape.whole.items():
        how = f"on one node, as {why}" if why else "by ranges of it, on all nodes"
        notes.append(f"Registered on {name}, where that is large, its first rows are computed {how}.")
    if shape.by_spark:
        notes.append(f"Spark computes all changes, however small, as DuckDB has not: {'; '.join(shape.by_spark)}.")
    else:
        notes.append("Where few rows change DuckDB computes what follows, in the node's process and without Spark.")
    return notes
