"""Names of the things that iscp speaks of.

They are named tuples, not dataclasses: an owner looks each of a hundred thousand shards up several times while it takes
over, and tuples are made, hashed and compared in C.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DEFAULT_ACCOUNT = "default"


class JobKey(NamedTuple):
    """The key of a row of the job log. `table_id` is the Delta table's own (its metadata id).

    A job on a table that is split has a row for each range (see iscp.core.rows.key_ranges).
    """

    account: str
    table_id: str
    job_name: str
    range_id: int = 1

    @property
    def job(self) -> JobKey:
        """Return the key that its users know the job by, however its table is split."""
        return self.of_range(1)

    def of_range(self, range_id: int) -> JobKey:
        """Return the same job's key in another range."""
        return self if self.range_id == range_id else self._replace(range_id=range_id)

    @property
    def shard(self) -> ShardId:
        return ShardId(self.table_id, self.range_id)


def next_job_id(now_s: float, last: str) -> str:
    """Return an id for a new registration: later ones sort after earlier ones, also when the clock steps back.

    `last` is the greatest id in the job log (empty: none). The order prevents a former registration's work from taking
    a sink back: only a later id may claim. Ids begin with the time, so that they stay in order even over a job log that
    was recreated. What follows the time in `last` does not count (see iscp.core.job.registration_id).
    """
    ms = max(int(now_s * 1000), int(last[:12], 16) + 1 if last else 0)
    return f"{ms:012x}"


def ranged_job_id(job_id: str, number: int) -> str:
    """Return one of several ids for what was decided under one: they sort after it, and before the next."""
    return f"{job_id}.{number:04x}"


_SHOWN_LENGTH = 50
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def is_table_id(text: str) -> bool:
    """Return whether it is an id that a Delta table has: a UUID.

    Ids are a part of shards' names, keys in etcd and paths, and are compared as texts: whoever writes a log could
    choose one that means something there.
    """
    return bool(_UUID.fullmatch(text))


def table_id_fault(text: str) -> str:
    """Return what is wrong with a Delta table's id, with its first characters, or an empty text if nothing is."""
    return "" if is_table_id(text) else f"the id {text[:_SHOWN_LENGTH]!r}, and a Delta table's id is a UUID"


class ShardId(NamedTuple):
    """The unit of placement and tailing: a table, or a key-hash range of one.

    Ranges follow a binary tree: `range_id` 1 is the whole, n splits into 2n and 2n+1.
    """

    table_id: str
    range_id: int = 1

    def __str__(self) -> str:
        return self.table_id if self.range_id == 1 else f"{self.table_id}/{self.range_id}"


def parse_shard(text: str) -> ShardId:
    """Return the shard of which `str` made this text; raise ValueError if it is none."""
    table_id, slash, range_id = text.partition("/")
    return ShardId(table_id, int(range_id)) if slash else ShardId(table_id)


class TableEpoch(NamedTuple):
    """One dispatch of a shard. Epochs are ordered: a later owner's always exceeds an earlier one's."""

    owner_rev: int
    counter: int
