"""Queries for lines of logs, and what nodes answer, as messages and back. Both are checked as they come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iscp.core.api.log_lines import LINES_MAX, JobOfLines, LogLine, LogPage, LogPlace, LogQuery
from iscp.core.settings.config import LogLevel
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import COUNT_MOST, exact_float, exact_int, exact_message, exact_name, printable
from iscp.wire.v1 import node_pb2, operator_pb2


def query_of(request: operator_pb2.GetLogsRequest | node_pb2.LogsRequest) -> LogQuery:
    """Without `after` and `job`. Raises InvalidRequest."""
    if not 0 <= request.since_s <= COUNT_MOST:
        raise InvalidRequest(
            "must be 0 seconds or more", field="since_s", remedy="Leave it out for all lines there are"
        )
    if request.tail > LINES_MAX:
        raise InvalidRequest(f"must be at most {LINES_MAX}", field="tail", remedy="Take fewer lines, or follow the log")
    try:
        level = LogLevel(request.level or LogLevel.DEBUG)
    except ValueError as error:
        levels = ", ".join(LogLevel)
        raise InvalidRequest(
            f"{printable(request.level)!r} is no level", field="level", remedy=f"One of {levels}"
        ) from error
    return LogQuery(since_s=request.since_s, tail=request.tail, level=level)


def query_from_wire(request: node_pb2.LogsRequest) -> LogQuery:
    """Raises InvalidRequest."""
    found, job = query_of(request), request.job
    return LogQuery(
        _place_of(request.after) if request.HasField("after") else None,
        found.since_s,
        found.tail,
        found.level,
        JobOfLines(job.job_id, job.name, job.account, tuple(job.tables)) if request.HasField("job") else None,
    )


def query_to_wire(query: LogQuery) -> node_pb2.LogsRequest:
    job = query.job
    return node_pb2.LogsRequest(
        after=_place_to_wire(query.after) if query.after is not None else None,
        since_s=query.since_s,
        tail=query.tail,
        level=query.level,
        job=node_pb2.JobOfLines(job_id=job.job_id, name=job.name, account=job.account, tables=job.tables)
        if job is not None
        else None,
    )


def places_from_wire(places: Iterable[operator_pb2.NodePlace]) -> dict[str, LogPlace]:
    return {each.node_id: _place_of(each.place) for each in places}


def places_to_wire(places: Mapping[str, LogPlace]) -> list[operator_pb2.NodePlace]:
    return [operator_pb2.NodePlace(node_id=node_id, place=_place_to_wire(place)) for node_id, place in places.items()]


def page_to_wire(page: LogPage) -> operator_pb2.LogPage:
    return operator_pb2.LogPage(
        node_id=page.node_id,
        place=_place_to_wire(page.place),
        lost=page.lost,
        restarted=page.restarted,
        fault=page.fault,
        lines=[operator_pb2.LogLine(number=line.number, at_s=line.at_s, text=line.text) for line in page.lines],
    )


def page_from_wire(message: operator_pb2.LogPage) -> LogPage:
    """Raises ValueError for one that cannot be."""
    return LogPage(
        exact_name(message.node_id, "node_id"),
        LogPlace(exact_int(message.place.life, "life"), exact_int(message.place.number, "number")),
        exact_int(message.lost, "lost"),
        message.restarted,
        exact_message(message.fault, "fault"),
        tuple(
            LogLine(
                exact_int(line.number, "number"),
                exact_float(line.at_s, "at_s"),
                line.text,
            )
            for line in message.lines
        ),
    )


def _place_of(message: operator_pb2.LogPlace) -> LogPlace:
    return LogPlace(message.life, message.number)


def _place_to_wire(place: LogPlace) -> operator_pb2.LogPlace:
    return operator_pb2.LogPlace(life=place.life, number=place.number)
