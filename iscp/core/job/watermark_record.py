"""The position that a sink with transactions of its own stores beside its data, as one text.

It goes into the very transaction of the data (after MatrixOne ISCP's DataRetriever.UpdateWatermark), and is all that
the next iteration needs: the seq to compare and set, the watermark to go on from, and whose commit it was.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.exact_watermarks import exact_watermark
from iscp.core.values.ids import JobKey
from iscp.core.values.untrusted_values import error_text, exact_int, exact_name, shown
from iscp.core.values.watermark import NOTHING_APPLIED, Position, Watermark

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
