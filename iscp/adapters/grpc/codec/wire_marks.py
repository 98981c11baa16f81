"""How far each of a job's tables was read, as messages."""

from __future__ import annotations

from collections.abc import Iterable

from iscp.core.values.watermark import SourceMark, SourceMarks, Watermark
from iscp.wire.v1 import admin_pb2 as pb


def marks_to_wire(sources: SourceMarks) -> list[pb.SourceMark]:
    found = ((uri, mark.table_id, mark.watermark) for uri, mark in sources.items())
    return [
        pb.SourceMark(uri=uri, table_id=table_id, version=at.version, at_s=at.at_s, step=at.step, steps=at.steps)
        for uri, table_id, at in found
    ]


def marks_from_wire(messages: Iterable[pb.SourceMark]) -> SourceMarks:
    return {
        each.uri: SourceMark(each.table_id, Watermark(each.version, each.at_s, each.step, each.steps))
        for each in messages
    }
