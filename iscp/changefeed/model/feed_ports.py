"""Ports for the writers of a changefeed: the lock queue of a shard, and the feed's table for a job.

The lock queue consists of locks, and the count of incidents in their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from iscp.changefeed.model.lock_queue import IncidentReport, Incidents
from iscp.core.build.build_request import BuildId
from iscp.ports.sink import Manifest, StagedRanges
from iscp.ports.system import Guard

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


class HeldLock(Protocol):
    """The first place in a lock queue. It stops nobody from writing: that is up to the commit."""

    @property
    def held(self) -> bool:
        """Return whether, as far as is known here, nobody else can hold it; makes no request."""

    def release(self) -> None:
        """Let the next one go; may be called again, and never raises: what cannot be deleted ends with its lease."""


class FeedLocks(Protocol):
    """The lines of one writer process. Raises Unavailable, OutcomeUnknown; InvalidRequest for a name that is none."""

    def try_lock(self, feed: str, shard: str, incidents: int, wait_s: float) -> HeldLock | None:
        """Queue for the lock of this count, for `wait_s` at most; None: in vain, and out of the queue again."""

    def incidents(self, feed: str, shard: str) -> Incidents: ...

    def raise_incidents(self, feed: str, shard: str, seen: Incidents) -> Incidents:
        """Raise the count by one unless it is another than `seen`; what it is now, if another raised it too."""

    def list_incidents(self, feed: str) -> tuple[IncidentReport, ...]:
        """Return the incidents of every shard of the feed that has had any, by shard."""

    def check(self) -> None:
        """Return if the connection is alive."""


class FeedCommit(Protocol):
    """One commit to a job's range of a feed, while it is made. The WatermarkTxn of that commit is this object too."""

    @property
    def row(self) -> pa.Schema:
        """Return the columns that a feed's rows have, in order."""

    @property
    def shards(self) -> int:
        """Return the number of shards of the whole feed; a power of two."""

    def add(self, shard: int, rows: pa.Table, operations: pa.Array, versions: pa.Array, net: bool) -> None:
        """Add rows behind those that were added before; `rows` have just the columns of `row`."""

    def difference(self, present: DataFrame, where: str, more: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the changes after which a replay of the feed's rows for which `where` is true gives the rows `present`.

        The changes are in order of the key, with `_change_type` and the SQL expressions `more`; rows count as often as
        they are there. Raises PermanentError where the feed cannot be replayed, since a part of it is gone.
        """

    @property
    def touched(self) -> bool:
        """Return whether the range's shards had commits before this one."""

    def insert_all(self, rows: DataFrame, key_hash: str, version: int, guard: Guard) -> int:
        """Add all rows as inserts of the source's `version`, in order of the key, as `difference` would; how many.

        `key_hash`: the column that says which shard a row belongs to. Raises InvalidRequest where one does not fit.
        """

    def get(self, key: str) -> str | None: ...
    def put(self, key: str, value: str) -> None: ...

    def commit(self) -> None:
        """Commit all at once, if nobody else has written to the range's shards since, and all that `get` returned is
        still so.

        Raises Conflict.
        """


class FeedSink(Protocol):
    """The table of a feed that a job keeps. One consumer at work has one."""

    def records(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Return the texts that commits have put under these keys; there are none where there is no table."""

    def open(self, row: pa.Schema, key: Sequence[str], shards: int) -> None:
        """Make the table where it is not there, as `begin` does."""

    def is_untouched(self, range_id: int) -> bool:
        """Return whether the range's shards never had a commit."""

    def ranges(self, build: BuildId) -> StagedRanges:
        """Return the staged ranges of one build, whose rows go with it."""

    def staged_rows(self, session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
        """Return the staged rows of manifests, of at least one."""

    def begin(
        self, row: pa.Schema, key: Sequence[str], shards: int, range_id: int
    ) -> AbstractContextManager[FeedCommit]:
        """Begin a commit for rows of such columns; the table is made where it is not there, and given new columns.

        `shards`: how many a new one is to have. A commit that is not finished leaves nothing behind. Raises
        PermanentError where a column has another type.
        """

    def tidy(self) -> None:
        """Delete files that nothing names, as Consumer has it."""
