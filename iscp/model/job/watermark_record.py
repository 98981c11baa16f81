"""The position that a sink with transactions of its own stores beside its data, as one text, and what the rows of a
range have reached by the records of ranges that overlap it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import superseded
from iscp.model.rows import key_ranges
from iscp.model.values.errors import ErrorCode, PermanentError
from iscp.model.values.ids import JobKey
from iscp.model.values.untrusted_values import error_text, exact_int, exact_name, shown
from iscp.model.values.watermark import NOTHING_APPLIED, Position, Watermark, exact_watermark

# --- the record of a commit -------------------------------------------------------------------------------------------
# The record goes into the very transaction of the data (after MatrixOne ISCP's DataRetriever.UpdateWatermark), and is
# all that the next iteration needs: the seq to compare and set, the watermark to go on from, and whose commit it was.

FORMAT = 2
"""The format of records with `origin` or `fenced_by`; others are still written and read in format 1, which lacks
both.
"""


@dataclass(frozen=True, slots=True)
class WatermarkRecord:
    """One commit of a sink: its number, the range that it applied, for which registration and from which source.

    `attempt` is unique: it distinguishes our commit from another writer's with the same seq. `origin` is the
    registration that its job goes on with over splits and merges of its table (empty: it is the first). `fenced_by` is
    the later one that has taken over keys of this range, whose former writers' commits are to fail (empty: nobody has).
    """

    seq: int
    watermark: Watermark
    job_id: str
    source_id: str
    from_version: int
    epoch: int
    attempt: str
    origin: str = ""
    fenced_by: str = ""

    def to_json(self) -> str:
        more = {name: value for name in ("origin", "fenced_by") if (value := getattr(self, name))}
        known = {name: value for name, value in asdict(self).items() if name not in ("origin", "fenced_by")}
        return json.dumps({"format": FORMAT if more else 1, **known, **more}, separators=(",", ":"))

    @property
    def registration(self) -> str:
        return self.origin or self.job_id

    @property
    def last_job_id(self) -> str:
        """Return the latest registration that had to do with it: an earlier one must not write any more."""
        return max(self.job_id, self.fenced_by)

    @property
    def position(self) -> Position:
        """Return the position of a sink whose last commit this is."""
        return Position(self.seq, self.watermark, self.last_job_id, self.source_id, base_version=self.seq)


def parse_record(text: str) -> WatermarkRecord:
    """Read the result of `to_json`; raise PermanentError for anything else."""
    try:
        found = json.loads(text)
        if found.pop("format") not in (1, FORMAT):
            raise ValueError("its format is another version's")
        record = WatermarkRecord(**{**found, "watermark": exact_watermark(Watermark(**found["watermark"]))})
        for name in ("seq", "epoch"):
            exact_int(getattr(record, name), name)
        exact_int(record.from_version, "from_version", -1)
        for name in ("job_id", "source_id", "attempt", "origin", "fenced_by"):
            exact_name(getattr(record, name), name)
        return record
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise PermanentError(
            f"the sink's watermark record cannot be read ({error_text(error)}): {shown(text)}",
            remedy="Put back what was written there, or empty the sink and its record: it is then rebuilt",
            code=ErrorCode.CONSUMER_BROKEN,
        ) from error


def position_of(text: str | None) -> Position:
    """Return the position of a sink with this record; without a record it was never written to."""
    return parse_record(text).position if text else Position(base_version=NOTHING_APPLIED)


def record_key(key: JobKey, target: str) -> str:
    """Return the name under which a sink stores the record: that of its place, which outlives registrations, and of the
    range.
    """
    place = f"iscp:{target}" if target else f"iscp:{key.account}/{key.table_id}/{key.job_name}"
    return place if key.range_id == 1 else f"{place}#{key.range_id}"


# --- what the rows of a range have reached ----------------------------------------------------------------------------
# A sharded sink stores one record for each range that was ever committed to it. A range that a split or a merge has
# made has none of its own at first. What its rows have reached, whoever wrote them, then follows from the records of
# the ranges that the rows belonged to:
#
# - At most one range of a registration is wanted for a key at a time, and a range's first commit fences all records
#   that overlap it. So for each key the record with the latest (job_id, seq), of those that overlap it and are of the
#   same registration, is of the last commit that had to do with the key: the key is at its watermark, however often the
#   table was split and merged since, and whichever of these ranges ever committed anything.
# - Records of other registrations, earlier ones, say nothing of the rows that this one wants: they are only fenced.
# - A record of a later job_id that overlaps, or a fence of one on the own record, says that the range is somebody
#   else's.
#
# That holds as of one moment. So the first commit compares all these records, those that are not there too, with what
# was read, in the very transaction that writes its own: had any of them moved, the commit starts over. A fence is a
# mark on a record and leaves its watermark alone, so that the other half of a split still finds it.


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a range whose keys are all at the position of `record`."""

    range_id: int
    record: WatermarkRecord


def established(row: JobRow, text: str | None) -> WatermarkRecord | None:
    """Return the row's own record, or None if it has made none: whoever takes over its keys marks it. Raises
    Superseded.
    """
    record = parse_record(text) if text else None
    if record is None or record.job_id != row.job_id or record.fenced_by > row.job_id:
        return None
    return record


def pieces(row: JobRow, texts: Mapping[int, str | None]) -> list[Piece]:
    """Return the fewest parts of the row's range that are each at one position; none if some of its keys were never
    applied.

    `texts` are the records of the range and of all that overlap it. Raises Superseded.
    """
    mine = row.key.range_id
    records = {each: parse_record(text) for each, text in texts.items() if text}
    for each, record in records.items():
        later = record.last_job_id if each == mine else record.job_id
        if later > row.job_id:
            raise superseded(f"the range {mine}", later)
    ours = {each: record for each, record in records.items() if record.registration == row.registration}
    found = _split_up(mine, _latest([ours[each] for each in key_ranges.above(mine) if each in ours]), ours)
    return [Piece(each, record) for each, record in found if record] if all(record for _, record in found) else []


def _split_up(
    range_id: int, inherited: WatermarkRecord | None, ours: Mapping[int, WatermarkRecord]
) -> list[tuple[int, WatermarkRecord | None]]:
    last = _latest([each for each in (inherited, ours.get(range_id)) if each])
    below = [ours[each] for each in key_ranges.below(range_id) if each in ours]
    if _latest([*below, *([last] if last else [])]) is last:
        return [(range_id, last)]
    return [part for child in key_ranges.children(range_id) for part in _split_up(child, last, ours)]


def _latest(records: Sequence[WatermarkRecord]) -> WatermarkRecord | None:
    return max(records, key=lambda record: (record.job_id, record.seq), default=None)


def fenced(text: str, job_id: str) -> str:
    """Return the record after a registration has taken over keys of its range."""
    record = parse_record(text)
    return replace(record, fenced_by=max(record.fenced_by, job_id)).to_json()
