"""The position of a job's sink: how far it has come, as the sink itself says.

Check how far sources were read, as a sink, a node or the job log says it; and write and read that as JSON.

Check the time at which something is to be done again, as somebody else has answered it, before it is believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from iscp.model.values.column_identity import ColumnIds
from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.totals import NO_TOTALS, QueryTotals
from iscp.model.values.untrusted_values import exact_float, exact_int, exact_name, exact_version, shown

NOTHING_APPLIED = -1


@dataclass(frozen=True, slots=True)
class Watermark:
    """The last source version durably applied, with its commit time (Unix seconds).

    `version` is -1 before anything was applied; never goes back except by an explicit resync. A commit that is too
    large for one iteration is applied in steps, each the changes of one class of keys: of the commit after `version`
    the first `step` of `steps` are applied (both 0: none of it is).
    """

    version: int = NOTHING_APPLIED
    at_s: float = 0.0
    step: int = 0
    steps: int = 0


_SAME_S = 0.001
"""Seconds by which a commit's time may change when it is written and read."""


def committed_apart(one_s: float, other_s: float) -> bool:
    """Return whether two commit times (Unix seconds; 0: not known) of a version are those of different commits."""
    return bool(one_s and other_s) and abs(one_s - other_s) > _SAME_S


def later(first: Watermark, second: Watermark) -> Watermark:
    """Return the one of the higher version, or the first if both are of one version."""
    return second if second.version > first.version else first


@dataclass(frozen=True, slots=True)
class SourceMark:
    """The progress in one of several sources: the id that its table had then, and the watermark."""

    table_id: str
    watermark: Watermark


SourceMarks = Mapping[str, SourceMark]
"""Marks by the URI of each table that a consumer of several reads, its job's own among them; empty for other
consumers.
"""


def later_marks(first: SourceMarks, second: SourceMarks) -> SourceMarks:
    """Return for each table the mark of the higher version, or the second one if that is of another table in its
    place.
    """

    def news(uri: str, mark: SourceMark) -> bool:
        before = first.get(uri, mark)
        return before.table_id != mark.table_id or before.watermark.version <= mark.watermark.version

    return {**first, **{uri: mark for uri, mark in second.items() if news(uri, mark)}}


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """The rows that a target leaves out: `rows` rows that share a key, stored in a table beside it at that table's
    `seq`.

    Seq 0: there is no such table; -1: nobody knows.
    """

    seq: int = 0
    rows: int = 0


NO_DEAD_LETTERS = DeadLetters()


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a sink: the seq of its last commit and the watermark in that commit.

    Invariants: `seq` >= 0, it is 0 only for a sink that was never claimed; `job_id` and `source_id` are those of the
    commit that carries `seq`. `void` says why the rows cannot be trusted to equal the source at the watermark (empty:
    they can); then only a snapshot difference or a new snapshot makes them right. `base_version` is the sink's own
    version up to which all this was checked. `dead` goes with the rows, and so do the `column_ids` of the source (None:
    the sink does not say). `sources` are those of a sink that is made of several tables. `as_of_s` is the instant (Unix
    seconds) of rows that depend on the time; 0: they do not. `totals` are those that the rows were made of.
    """

    seq: int = 0
    watermark: Watermark = Watermark()
    job_id: str = ""
    source_id: str = ""
    void: str = ""
    base_version: int = -1
    dead: DeadLetters = NO_DEAD_LETTERS
    column_ids: ColumnIds | None = None
    sources: SourceMarks = field(default_factory=dict)
    as_of_s: float = 0.0
    totals: QueryTotals = NO_TOTALS


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


def wait_until_s(next_at_s: object, now_s: float) -> float:
    """Return how long to wait for `next_at_s` (Unix seconds): never in the past, never nothing. Raises PermanentError.

    A time that is over would have it done again at once and for ever, one that is none never again.
    """
    try:
        at_s = exact_float(next_at_s, "next_at_s", -inf, inf)
    except ValueError as error:
        raise _no_time(f"{shown(next_at_s)} is no time") from error
    if at_s <= now_s:
        raise _no_time(f"{at_s} is {now_s - at_s:.3f} s in the past")
    return at_s - now_s


def _no_time(why: str) -> PermanentError:
    return PermanentError(
        f"the next time that was answered will not do: {why}",
        remedy="Answer Unix seconds that are yet to come",
        code=ErrorCode.CONSUMER_BROKEN,
    )
