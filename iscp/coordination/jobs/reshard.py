"""Split or merge a table's ranges: which ranges go, which come, and the rows of its jobs.

Neither moves rows of a sink: a range's next iteration reads what those before it have reached there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from iscp.core.job.job_of_ranges import combined
from iscp.core.job.job_row import JobRow
from iscp.core.job.registration_id import id_of_successor
from iscp.core.rows import key_ranges
from iscp.core.values.errors import InvalidRequest
from iscp.core.values.ids import ranged_job_id

RANGE_FIELD = "range"
_SEE_LIST = "See `iscp-admin shard list` for those that there are"


@dataclass(frozen=True, slots=True)
class Reshard:
    """Split ranges of a table (0: all), or merge pairs of them (0: the smallest). Answered with how many it has then.

    `job_id`: the time that the ids of its rows begin with; `seen`: the registrations that were checked to be of kinds
    whose sinks are sharded. If they are not the table's by now that is a Conflict.
    """

    table_id: str
    merge: bool
    range_id: int
    seen: frozenset[str]
    job_id: str = ""
    request_id: str = ""


Change = tuple[tuple[int, ...], tuple[int, ...]]
"""Ranges that go, and those that are there instead."""


def changes(ranges: Collection[int], merge: bool, range_id: int) -> list[Change]:
    """Raises InvalidRequest."""
    if range_id and range_id not in ranges:
        raise InvalidRequest(f"the table has no range {range_id}", about=RANGE_FIELD, remedy=_SEE_LIST)
    return _merges(ranges, range_id) if merge else _splits(ranges, range_id)


def _splits(ranges: Collection[int], range_id: int) -> list[Change]:
    chosen = [range_id] if range_id else sorted(ranges)
    least = [each for each in chosen if not key_ranges.may_split(each)]
    if least:
        raise InvalidRequest(
            f"range {least[0]} is one of {key_ranges.RANGES_MAX} parts of its table already, and none is smaller",
            about=RANGE_FIELD,
            remedy="Name a range that is larger; see `iscp-admin shard list`",
        )
    return [((each,), key_ranges.children(each)) for each in chosen]


def _merges(ranges: Collection[int], range_id: int) -> list[Change]:
    if key_ranges.WHOLE in ranges:
        raise InvalidRequest(
            "the table is not split: its range 1 is the whole", about=RANGE_FIELD, remedy="There is nothing to merge"
        )
    parents = [key_ranges.parent(range_id)] if range_id else key_ranges.deepest(ranges)
    if range_id and (other := key_ranges.sibling(range_id)) not in ranges:
        raise InvalidRequest(
            f"range {range_id} is merged with {other}, which is split further",
            about=RANGE_FIELD,
            remedy=f"Merge what {other} was split into first",
        )
    return [(key_ranges.children(each), (each,)) for each in parents]


def refuse_unsharded(row: JobRow, kind: str, ranges: Collection[int]) -> None:
    """Raise InvalidRequest for a job whose sink has one watermark, on a table that has several."""
    if key_ranges.WHOLE not in ranges:
        raise InvalidRequest(
            f"{row.table_name} is split into {len(ranges)} ranges, and the sink of a consumer {kind} is not sharded",
            about="table",
            remedy=f"`iscp-admin shard merge {row.table_name}` until it is whole, then register the job",
        )


def refuse_split(row: JobRow, ranges: Collection[int]) -> None:
    """Raise InvalidRequest for what cannot be done with a job while its table is split."""
    if key_ranges.WHOLE not in ranges:
        raise InvalidRequest(
            f"{row.table_name} is split into {len(ranges)} ranges, each of which goes its own way",
            about="table",
            remedy=f"`iscp-admin shard merge {row.table_name}` until it is whole, and then repeat this request",
        )


def rows_after(rows: Sequence[JobRow], merged: Sequence[Change], job_id: str, now_s: float) -> Iterator[JobRow]:
    """Return the rows to be logged: of each job and change those that end, then those that go on with it."""
    number = 0
    for gone, come in merged:
        mine: dict[str, list[JobRow]] = {}
        for row in rows:
            if row.key.range_id in gone:
                mine.setdefault(row.registration, []).append(row)
        for registration, before in mine.items():
            yield from (row._replace(drop_at_s=now_s) for row in before)
            # Paused, quarantined or failed stays so; the watermark is a hint, as always.
            job = combined(before)
            later_id = id_of_successor(job_id, registration)
            for each in come:
                key, number = job.key.of_range(each), number + 1
                yield job._replace(key=key, job_id=ranged_job_id(later_id, number), origin=registration)


def rows_of_registration(row: JobRow, ranges: Collection[int]) -> list[JobRow]:
    """Return a new job's rows on a table that may be split."""
    if key_ranges.WHOLE in ranges:
        return [row]
    return [
        row._replace(key=row.key.of_range(each), job_id=ranged_job_id(row.job_id, each), origin=row.job_id)
        for each in sorted(ranges)
    ]
