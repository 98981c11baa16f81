"""Explanations of queries as messages of `Admin`."""

from __future__ import annotations

from iscp.adapters.grpc.codec.message_codec import Codec, EnumCodec, FieldCodec
from iscp.core.query.query_explanation import ChangeCost, ExplainedOperator, KeptTable, OperatorUpkeep, QueryExplanation
from iscp.core.values.progress import UNCOUNTED, TableSize
from iscp.wire.v1 import admin_pb2 as pb

_SIZE = Codec(TableSize, pb.QueryTable)
_EXPLANATION = Codec(
    QueryExplanation,
    pb.QueryExplanation,
    operators=Codec(
        ExplainedOperator,
        pb.ExplainedOperator,
        upkeep=EnumCodec(OperatorUpkeep, pb.Upkeep, "upkeep {}"),
        costs=Codec(ChangeCost, pb.ChangeCost),
    ),
    columns=FieldCodec(
        lambda columns: [{"name": name, "type": kind} for name, kind in columns.items()],
        lambda messages: {each.name: each.type for each in messages},
    ),
    tables=FieldCodec(
        lambda tables: [{"name": name, "uri": uri} for name, uri in tables.items()],
        lambda messages: {each.name: each.uri for each in messages},
    ),
    kept=Codec(KeptTable, pb.KeptTable, size=_SIZE),
)


def explanation_to_wire(explained: QueryExplanation) -> pb.QueryExplanation:
    message = _EXPLANATION.to_wire(explained)
    for table in message.tables:
        size = explained.sizes.get(table.name, UNCOUNTED)
        table.rows, table.bytes = size.rows, size.bytes
    return message


def explanation_from_wire(message: pb.QueryExplanation) -> QueryExplanation:
    """Raises PermanentError where the node is newer and keeps an operator in a way unknown here."""
    sizes = {each.name: _SIZE.from_wire(each) for each in message.tables if each.bytes >= 0}
    return _EXPLANATION.from_wire(message, sizes=sizes)
