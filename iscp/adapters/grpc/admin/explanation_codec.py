"""Between the values of iscp.core.query_explanation and the messages of `Admin`."""

from __future__ import annotations

from iscp.adapters.grpc.admin.convert import fields_of
from iscp.core.errors import PermanentError
from iscp.core.query_explanation import ExplainedOperator, OperatorUpkeep, QueryExplanation
from iscp.wire.v1 import admin_pb2 as pb

_UPKEEP_TO_WIRE = {upkeep: pb.Upkeep.Value(f"UPKEEP_{upkeep.name}") for upkeep in OperatorUpkeep}
_UPKEEP_FROM_WIRE = {number: upkeep for upkeep, number in _UPKEEP_TO_WIRE.items()}
_OPERATOR_FIELDS = ("depth", "operator", "state", "reason", "remedy")


def explanation_to_wire(explained: QueryExplanation) -> pb.QueryExplanation:
    return pb.QueryExplanation(
        operators=[
            pb.ExplainedOperator(upkeep=_UPKEEP_TO_WIRE[each.upkeep], **fields_of(each, _OPERATOR_FIELDS))
            for each in explained.operators
        ],
        columns=[pb.QueryColumn(name=name, type=kind) for name, kind in explained.columns.items()],
        tables=[pb.QueryTable(name=name, uri=uri) for name, uri in explained.tables.items()],
        notes=explained.notes,
    )


def explanation_from_wire(message: pb.QueryExplanation) -> QueryExplanation:
    """Raises PermanentError where the node is newer and keeps an operator in a way unknown here."""
    return QueryExplanation(
        operators=tuple(_operator(each) for each in message.operators),
        columns={each.name: each.type for each in message.columns},
        tables={each.name: each.uri for each in message.tables},
        notes=tuple(message.notes),
    )


def _operator(message: pb.ExplainedOperator) -> ExplainedOperator:
    upkeep = _UPKEEP_FROM_WIRE.get(message.upkeep)
    if upkeep is None:
        raise PermanentError(f"upkeep {message.upkeep} is not known here", remedy="Use a client as new as the node")
    return ExplainedOperator(upkeep=upkeep, **fields_of(message, _OPERATOR_FIELDS))
