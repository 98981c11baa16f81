"""The position of a job's sink: how far it has come, as the sink itself says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iscp.core.values.column_identity import ColumnIds
from iscp.core.values.totals import NO_TOTALS, QueryTotals

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
