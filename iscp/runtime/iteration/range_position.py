"""Finds the position of a range in a sink that has a watermark for each range.

The range has a record of its own, or goes on from those of other ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from iscp.core.job.job_row import JobRow
from iscp.core.job.range_lineage import Piece, established, pieces
from iscp.core.job.watermark_record import parse_record, record_key
from iscp.core.rows import key_ranges
from iscp.core.values.watermark import Position, Watermark, later
from iscp.ports.consumer import RangedConsumer


@dataclass(frozen=True, slots=True)
class RangePosition:
    """The position of a range, and what its first commit has to take over.

    `takeover` has the records, by their keys, that the first commit has to find as they were, and to fence (None: there
    is none); it is empty once the range has a record of its own. `apart` has the ranges that it consists of and where
    each stands, while that is not the same.
    """

    position: Position
    takeover: Mapping[str, str | None] = field(default_factory=dict)
    apart: tuple[Piece, ...] = ()

    @property
    def goal(self) -> int:
        """Return the version at which all that is apart can be together."""
        marks = [each.record.watermark for each in self.apart]
        return max(mark.version + (mark.step > 0) for mark in marks)

    def lagging(self, tried: Collection[int]) -> Piece | None:
        """Return a piece that is not at the goal, and was not `tried` yet, or None."""
        wait = (each for each in self.apart if _place(each) != (self.goal, 0, 0) and each.range_id not in tried)
        return next(wait, None)


def read_position(row: JobRow, consumer: RangedConsumer, reached: Mapping[int, Watermark]) -> RangePosition:
    """Read the position of the job's range. Raises Superseded.

    `reached` says, by range, how far each is known to be beyond its record, by versions without a row for it.
    """
    target, mine = row.spec.consumer.target, row.key.range_id
    own_key = record_key(row.key, target)
    if (record := established(row, consumer.records([own_key])[own_key])) is not None:
        return RangePosition(record.position)
    keys = {each: record_key(row.key.of_range(each), target) for each in (mine, *key_ranges.overlapping(mine))}
    takeover = consumer.records(list(keys.values()))
    seqs = [parse_record(text).seq for text in takeover.values() if text]
    nothing = Position(max(seqs, default=0))
    parts = tuple(_known(each, reached) for each in pieces(row, {n: takeover[key] for n, key in keys.items()}))
    if not parts:
        return RangePosition(nothing, takeover)
    first, sources = parts[0].record, {each.record.source_id for each in parts}
    if len({_place(each) for each in parts}) > 1:
        return RangePosition(replace(nothing, watermark=min(parts, key=_place).record.watermark), takeover, parts)
    source_id = first.source_id if len(sources) == 1 else ""
    return RangePosition(replace(nothing, watermark=first.watermark, job_id=row.job_id, source_id=source_id), takeover)


def _known(piece: Piece, reached: Mapping[int, Watermark]) -> Piece:
    watermark = later(piece.record.watermark, reached.get(piece.range_id, Watermark()))
    return replace(piece, record=replace(piece.record, watermark=watermark))


def _place(piece: Piece) -> tuple[int, int, int]:
    mark = piece.record.watermark
    return mark.version, mark.step, mark.steps
