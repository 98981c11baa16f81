"""Check how far sources were read, as a sink, a node or the job log says it; and write and read that as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from iscp.core.values.untrusted_values import exact_float, exact_int, exact_name, exact_version, shown
from iscp.core.values.watermark import SourceMark, SourceMarks, Watermark

SOURCES_MAX = 1_000
"""Tables that one job reads, as far as it may be said of its sink; a position with more of them is refused."""


def exact_watermark(found: object) -> Watermark:
    if not isinstance(found, Watermark):
        raise ValueError(f"watermark is {shown(found)}, which is no Watermark")
    steps = exact_int(found.steps, "watermark.steps")
    return Watermark(
        exact_version(found.version, "watermark.version"),
        exact_float(found.at_s, "watermark.at_s"),
        exact_int(found.step, "watermark.step", 0, steps),
        steps,
    )


def exact_sources(found: object, name: str = "sources") -> SourceMarks:
    """Return the marks of a sink's tables, by their URIs. Raises ValueError."""
    if not isinstance(found, Mapping) or len(found) > SOURCES_MAX:
        raise ValueError(f"{name} is {shown(found)}, which is no mapping of at most {SOURCES_MAX} tables")
    return {exact_name(uri, f"{name}: a URI"): _exact_mark(mark, name) for uri, mark in found.items()}


def _exact_mark(found: object, name: str) -> SourceMark:
    if not isinstance(found, SourceMark):
        raise ValueError(f"{name} has {shown(found)}, which is no SourceMark")
    return SourceMark(exact_name(found.table_id, f"{name}: table_id"), exact_watermark(found.watermark))


def sources_document(sources: SourceMarks) -> dict[str, list[Any]]:
    """Return the marks as JSON, by URI: table_id, version, commit time; and for a version that is applied in part, its
    steps.
    """
    return {uri: [mark.table_id, *_numbers(mark.watermark)] for uri, mark in sources.items()}


def _numbers(mark: Watermark) -> list[float]:
    return [mark.version, mark.at_s, *([mark.step, mark.steps] if mark.steps else [])]


def parse_sources(document: object) -> SourceMarks:
    """Read the result of `sources_document`; raise ValueError for anything else."""
    if not isinstance(document, Mapping) or not all(isinstance(each, list) and each for each in document.values()):
        raise ValueError(f"sources is {shown(document)}, which does not map tables to their marks")
    try:
        return exact_sources({uri: SourceMark(each[0], Watermark(*each[1:])) for uri, each in document.items()})
    except TypeError:
        raise ValueError(f"sources is {shown(document)}, and a mark in it has too many parts") from None
