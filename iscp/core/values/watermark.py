"""How far a job's sink has come, as the sink itself says."""

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
"""What is left of a commit's time when it has been written and read."""


def committed_apart(one_s: float, other_s: float) -> bool:
    """Whether a version that was read then was committed at another time, and so is another's; 0: nobody knows."""
    return bool(one_s and other_s) and abs(one_s - other_s) > _SAME_S


def later(first: Watermark, second: Watermark) -> Watermark:
    """The one of the higher version; of one version the first."""
    return second if second.version > first.version else first


@dataclass(frozen=True, slots=True)
class SourceMark:
    """How far one of several sources was read: the id that its table had then, and the watermark."""

    table_id: str
    watermark: Watermark


SourceMarks = Mapping[str, SourceMark]
"""By the URI of each table that a consumer of several reads, its job's own among them; of others it is empty."""


def later_marks(first: SourceMarks, second: SourceMarks) -> SourceMarks:
    """Of each table the mark of the higher version; of another table in its place the second one."""

    def news(uri: str, mark: SourceMark) -> bool:
        before = first.get(uri, mark)
        return before.table_id != mark.table_id or before.watermark.version <= mark.watermark.version

    return {**first, **{uri: mark for uri, mark in second.items() if news(uri, mark)}}


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What a target leaves out: `rows` rows that share a key, kept in a table beside it at that table's `seq`.

    Seq 0: there is no such table; -1: nobody knows.
    """

    seq: int = 0
    rows: int = 0


NO_DEAD_LETTERS = DeadLetters()


@dataclass(frozen=True, slots=True)
class Position:
    """The position of a sink: the seq of its last commit and the watermark in that commit.

    Invariants: `seq` >= 0, it is 0 only for a sink that was never claimed; `job_id` and `source_id` are those of
    the commit that carries `seq`. `void` says why the rows cannot be trusted to equal the source at the
    watermark (empty: they can); then only a snapshot difference or a new snapshot makes them right.
    `base_version` is the sink's own version up to which all this was checked. `dead` goes with the rows, and so do the
    `column_ids` of the source (None: the sink does not say). `sources`: of a sink that is made of several tables.
    `as_of_s`: of one whose rows depend on the time, the instant (Unix seconds) that they are of; 0: they do not.
    `totals`: those that the rows were made of.
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
