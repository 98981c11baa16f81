"""Queries for lines of logs, and what nodes answer, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iscp.adapters.grpc.codec.message_codec import Codec, FieldCodec
from iscp.core.api.log_lines import LINES_MAX, JobOfLines, LogLine, LogPage, LogPlace, LogQuery
from iscp.core.settings.config import LogLevel
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import COUNT_MOST, printable
from iscp.wire.v1 import node_pb2, operator_pb2


def _level_from_wire(level: str) -> LogLevel:
    try:
        return LogLevel(level or LogLevel.DEBUG)
    except ValueError as error:
        levels = ", ".join(LogLevel)
        raise InvalidRequest(f"{printable(level)!r} is no level", about="level", remedy=f"One of {levels}") from error


_PLACE = Codec(LogPlace, operator_pb2.LogPlace)
_QUERY = Codec(
    LogQuery,
    node_pb2.LogsRequest,
    after=_PLACE,
    level=FieldCodec(str, _level_from_wire),
    job=Codec(JobOfLines, node_pb2.JobOfLines),
)
LOG_PAGE = Codec(LogPage, operator_pb2.LogPage, place=_PLACE, lines=Codec(LogLine, operator_pb2.LogLine))
query_to_wire = _QUERY.to_wire


def query_of_user(request: operator_pb2.GetLogsRequest) -> LogQuery:
    """Return the query without `after` and `job`. Raises InvalidRequest."""
    wire = node_pb2.LogsRequest(since_s=request.since_s, tail=request.tail, level=request.level)
    return query_from_wire(wire)


def query_from_wire(request: node_pb2.LogsRequest) -> LogQuery:
    """Raises InvalidRequest."""
    if not 0 <= request.since_s <= COUNT_MOST:
        raise InvalidRequest(
            "must be 0 seconds or more", field="since_s", remedy="Leave it out for all lines there are"
        )
    if request.tail > LINES_MAX:
        raise InvalidRequest(f"must be at most {LINES_MAX}", field="tail", remedy="Take fewer lines, or follow the log")
    return _QUERY.from_wire(request)


def places_from_wire(places: Iterable[operator_pb2.NodePlace]) -> dict[str, LogPlace]:
    return {each.node_id: _PLACE.from_wire(each.place) for each in places}


def places_to_wire(places: Mapping[str, LogPlace]) -> list[operator_pb2.NodePlace]:
    return [operator_pb2.NodePlace(node_id=node_id, place=_PLACE.to_wire(place)) for node_id, place in places.items()]
