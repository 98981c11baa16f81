"""Between the values of iscp.core.query.query_explanation and the messages of `Admin`."""

from __future__ import annotations

from iscp.adapters.grpc.codec.convert import fields_of
from iscp.core.query.query_explanation import ChangeCost, ExplainedOperator, KeptTable, OperatorUpkeep, QueryExplanation
from iscp.core.values.errors import PermanentError
from iscp.core.values.progress import UNKNOWN, TableSize
from iscp.wire.v1 import admin_pb2 as pb

_UPKEEP_TO_WIRE = {upkeep: pb.Upkeep.Value(f"UPKEEP_{upkeep.name}") for upkeep in OperatorUpkeep}
_UPKEEP_FROM_WIRE = {number: upkeep for upkeep, number in _UPKEEP_TO_WIRE.items()}
_COST_FIELDS = ("table", "changed", "read")
_SIZE_FIELDS = ("rows", "bytes")
_UNSIZED = TableSize(UNKNOWN, UNKNOWN)
_OPERATOR_FIELDS = ("depth", "operator", "state", "reason", "remedy")


def explanation_to_wire(explained: QueryExplanation) -> pb.QueryExplanation:
    return pb.QueryExplanation(
        operators=[
            pb.ExplainedOperator(
                upkeep=_UPKEEP_TO_WIRE[each.upkeep],
                costs=[pb.ChangeCost(**fields_of(cost, _COST_FIELDS)) for cost in each.costs],
                **fields_of(each, _OPERATOR_FIELDS),
            )
            for each in explained.operators
        ],
        columns=[pb.QueryColumn(name=name, type=kind) for name, kind in explained.columns.items()],
        tables=[
            pb.QueryTable(name=name, uri=uri, **fields_of(explained.sizes.get(name, _UNSIZED), _SIZE_FIELDS))
            for name, uri in explained.tables.items()
        ],
        notes=explained.notes,
        kept=[
            pb.KeptTable(uri=each.uri, holds=each.holds, **fields_of(each.size, _SIZE_FIELDS))
            for each in explained.kept
        ],
    )


def explanation_from_wire(message: pb.QueryExplanation) -> QueryExplanation:
    """Raises PermanentError where the node is newer and keeps an operator in a way unknown here."""
    return QueryExplanation(
        operators=tuple(_operator(each) for each in message.operators),
        columns={each.name: each.type for each in message.columns},
        tables={each.name: each.uri for each in message.tables},
        notes=tuple(message.notes),
        sizes={each.name: TableSize(each.rows, each.bytes) for each in message.tables if each.bytes >= 0},
        kept=tuple(KeptTable(each.uri, each.holds, TableSize(each.rows, each.bytes)) for each in message.kept),
    )


def _operator(message: pb.ExplainedOperator) -> ExplainedOperator:
    upkeep = _UPKEEP_FROM_WIRE.get(message.upkeep)
    if upkeep is None:
        raise PermanentError(f"upkeep {message.upkeep} is not known here", remedy="Use a client as new as the node")
    costs = tuple(ChangeCost(**fields_of(cost, _COST_FIELDS)) for cost in message.costs)
    return ExplainedOperator(upkeep=upkeep, costs=costs, **fields_of(message, _OPERATOR_FIELDS))
