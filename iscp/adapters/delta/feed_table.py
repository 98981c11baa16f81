"""The Delta table of a changefeed: rows in the order of their ulids, by shard, with each shard's state.

A shard's state, the next ulid that it will give, moves by compare-and-set in the commit that has the rows. 128 bits do
not fit one `txn`, so that three of them carry it: a count, and the ulid's two halves. A commit goes to exactly the
version after the last one known. Where another shard's commit took that version, the same file is committed again at
the next one; where the shard's own state has moved, the commit fails: so ulids become visible in their order.

A log that is cleaned has free versions at its beginning, and a writer that slept for long would find one free. What
took long therefore counts only once the table was opened anew after it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction

from iscp.adapters.delta.faults import delta_faults
from iscp.adapters.delta.table_files import files_of, local_path, sync
from iscp.adapters.delta.ulids import ulid_columns
from iscp.core.errors import ConfigurationError, Conflict, InvalidRequest, OutcomeUnknown, Unavailable
from iscp.core.ulid import UlidPlace, ulid_text
from iscp.ports.system import Clock, Failpoints

FORMAT = 1
FORMAT_PROPERTY = "iscp.changefeed.format"
FEED_PROPERTY = "iscp.changefeed.id"
SHARDS_PROPERTY = "iscp.changefeed.shards"
COMMIT_ID = "iscp.commit_id"
SHARDS_MAX = 1_024
FAILPOINT_WRITE = "feed.write"
FAILPOINT_COMMIT = "feed.commit"
FAILPOINT_COMMITTED = "feed.committed"

ATTEMPTS_MAX = 200
"""Of one commit, each after another shard's took its version."""

SLEPT_S = 3_600.0
"""A commit that has not been made by then is given up: its file may have been vacuumed away."""

LONG_S = 10.0
"""A commit that took longer from the look at the state is looked for in the table opened anew; far less than any log
is kept."""

ULID, ULID_TEXT, SHARD, OPERATION, ROW = "ulid", "ulid_text", "shard", "operation", "row"


@dataclass(frozen=True, slots=True)
class ShardState:
    """`seq`: how many commits the shard has had; `place`: the next ulid that it will give."""

    seq: int
    place: UlidPlace


@dataclass(frozen=True, slots=True)
class FeedDescription:
    """`row`: the columns of what is appended, which a feed has as the fields of its column `row`."""

    feed_id: str
    shards: int
    row: pa.Schema


def create_feed_table(uri: str, row: pa.Schema, shards: int, options: Mapping[str, str] | None = None) -> None:
    """Make the table of a new feed. Raises InvalidRequest where there is one, or where there cannot be such a feed."""
    if not 1 <= shards <= SHARDS_MAX:
        raise InvalidRequest(f"a feed has 1 to {SHARDS_MAX} shards, not {shards}", field="shards")
    if not len(row):
        raise InvalidRequest("the rows of a feed need at least one column", field="schema")
    if DeltaTable.is_deltatable(uri, storage_options=dict(options or {})):
        raise InvalidRequest(f"there is a table at {uri} already", field="uri", remedy="Choose another place")
    with delta_faults(f"make the feed {uri}"):
        DeltaTable.create(
            uri,
            _schema(row),
            mode="error",
            partition_by=[SHARD],
            configuration={
                FORMAT_PROPERTY: str(FORMAT),
                FEED_PROPERTY: str(uuid.uuid4()),
                SHARDS_PROPERTY: str(shards),
                "delta.checkpointInterval": "50",
            },
            storage_options=dict(options) if options else None,
            raise_if_key_not_exists=False,
        )


def _schema(row: pa.Schema) -> pa.Schema:
    return pa.schema(
        [
            pa.field(ULID, pa.binary(), nullable=False),
            # Binary columns have no statistics, and every poll would have to read all files.
            pa.field(ULID_TEXT, pa.string(), nullable=False),
            pa.field(SHARD, pa.int32(), nullable=False),
            pa.field(OPERATION, pa.string(), nullable=False),
            pa.field(ROW, pa.struct(list(row)), nullable=False),
        ]
    )


class FeedTable:
    """One process's hold on the table; not to be used from several threads at once."""

    def __init__(
        self, uri: str, clock: Clock, failpoints: Failpoints, options: Mapping[str, str] | None = None
    ) -> None:
        """Raises TableNotFound, ConfigurationError where the table is no feed or a newer iscp's."""
        self._uri = uri
        self._clock = clock
        self._failpoints = failpoints
        self._options = dict(options) if options else None
        self._path = local_path(uri)
        self._files = files_of(uri, options)
        self._table = self._opened()
        self.description = self._described()

    def state(self, shard: int) -> ShardState:
        """As of now. Raises InvalidRequest, StorageError."""
        self._refuse_shard(shard)
        with delta_faults(f"read the feed {self._uri}"):
            self._table.update_incremental()
            return self._state_of(self._table, shard)

    def append(
        self, shard: int, seen: ShardState, first: UlidPlace, rows: pa.Table, operations: pa.Array
    ) -> ShardState:
        """Commit `rows` in their order, with the ulids from `first` on, if the shard's state still is `seen`.

        Returns the state that this leaves. Raises InvalidRequest (rows that do not fit), Conflict (the state has moved,
        or this took too long: nothing was committed), StorageError and Unavailable (neither was it then),
        OutcomeUnknown.
        """
        self._refuse_shard(shard)
        self._refuse_misfit(rows, operations)
        began_s = self._clock.monotonic_s()
        after = ShardState(seen.seq + 1, first.after(len(rows)))
        name = f"{SHARD}={shard}/{uuid.uuid4().hex}.parquet"
        with delta_faults(f"write to the feed {self._uri}"):
            add = self._write(name, shard, first, rows, operations)
        try:
            version = self._commit(shard, seen, after, add, began_s + SLEPT_S)
        except (Conflict, Unavailable):
            self._discard(name)
            raise
        self._sync(version)
        if self._clock.monotonic_s() - began_s > LONG_S:
            self._look_again(version)
        return after

    def _opened(self) -> DeltaTable:
        with delta_faults(f"open the feed {self._uri}"):
            return DeltaTable(self._uri, storage_options=self._options)

    def _described(self) -> FeedDescription:
        properties = self._table.metadata().configuration
        if FORMAT_PROPERTY not in properties:
            raise ConfigurationError(f"the table {self._uri} is no changefeed", field="uri", remedy="Check the path")
        if (format_ := int(properties[FORMAT_PROPERTY] or 0)) > FORMAT:
            raise ConfigurationError(
                f"{self._uri} is of format {format_}, this iscp knows {FORMAT}", remedy="Install a newer iscp"
            )
        schema = pa.schema(self._table.schema().to_arrow())
        row = pa.schema(list(schema.field(ROW).type))
        return FeedDescription(properties[FEED_PROPERTY] or "", int(properties[SHARDS_PROPERTY] or 0), row)

    def _refuse_shard(self, shard: int) -> None:
        if not 0 <= shard < self.description.shards:
            raise InvalidRequest(
                f"the feed has no shard {shard}", field="shard", remedy=f"Use 0 to {self.description.shards - 1}"
            )

    def _refuse_misfit(self, rows: pa.Table, operations: pa.Array) -> None:
        wanted = self.description.row
        if not len(rows):
            raise InvalidRequest("there are no rows to append", field="rows")
        if operations.type != pa.string() or len(operations) != len(rows) or operations.null_count:
            raise InvalidRequest(
                f"{len(rows)} rows need as many operations", field="operations", remedy="Give a text for each row"
            )
        if rows.schema.names != wanted.names or rows.schema.types != wanted.types:
            raise InvalidRequest(
                f"the rows have the columns {_told(rows.schema)}, the feed's are {_told(wanted)}",
                field="rows",
                remedy="Cast them to the feed's columns, in their order",
            )
        for field in wanted:
            if not field.nullable and rows[field.name].null_count:
                raise InvalidRequest(
                    f"column {field.name} has nulls", field="rows", remedy="The feed's column takes none"
                )

    def _app_ids(self, shard: int) -> tuple[str, str, str]:
        base = f"changefeed/{self.description.feed_id}/{shard}"
        return f"{base}/seq", f"{base}/high", f"{base}/low"

    def _state_of(self, table: DeltaTable, shard: int) -> ShardState:
        seq, high, low = (table.transaction_version(app_id) or 0 for app_id in self._app_ids(shard))
        return ShardState(seq, UlidPlace(high, low))

    def _write(self, name: str, shard: int, first: UlidPlace, rows: pa.Table, operations: pa.Array) -> AddAction:
        ulids, texts = ulid_columns(first, len(rows))
        try:
            columns = [column.combine_chunks() for column in rows.columns]
            row = pa.StructArray.from_arrays(columns, fields=list(self.description.row))
        except pa.ArrowInvalid as error:
            raise InvalidRequest(f"the rows do not fit the feed: {error}", field="rows") from error
        table = pa.table({ULID: ulids, ULID_TEXT: texts, OPERATION: operations, ROW: row})
        if self._path is not None:
            (self._path / name).parent.mkdir(exist_ok=True)
            self._synced(".")
        with self._files.open_output_stream(name) as stream:
            pq.write_table(table, stream, compression="zstd", use_dictionary=[OPERATION])
            size = stream.tell()
        self._failpoints.reach(FAILPOINT_WRITE)
        self._synced(name, os.path.dirname(name))
        bounds = {"minValues": first.ulid(), "maxValues": first.ulid(len(rows) - 1)}
        stats = {"numRecords": len(rows), **{key: {ULID_TEXT: ulid_text(ulid)} for key, ulid in bounds.items()}}
        stats["nullCount"] = {ULID_TEXT: 0}
        return AddAction(name, size, {SHARD: str(shard)}, int(self._clock.now_s() * 1000), True, json.dumps(stats))

    def _commit(self, shard: int, seen: ShardState, after: ShardState, add: AddAction, until_s: float) -> int:
        """The version that it became; tried until that time."""
        commit_id, values = uuid.uuid4().hex, (after.seq, after.place.high, after.place.low)
        transactions = [Transaction(app, value) for app, value in zip(self._app_ids(shard), values, strict=True)]
        properties = CommitProperties({COMMIT_ID: commit_id}, max_commit_retries=0, app_transactions=transactions)
        failed: Exception | None = None
        for attempt in range(ATTEMPTS_MAX + 1):
            landed = self._catch_up(shard, seen, commit_id, failed)
            if landed is not None:
                return landed
            if attempt == ATTEMPTS_MAX:
                break
            self._failpoints.reach(FAILPOINT_COMMIT)
            if self._clock.monotonic_s() > until_s:
                raise Conflict(f"a commit to {self._uri} slept for too long", remedy="Begin the transaction again")
            version = self._table.version() + 1
            try:
                self._table.create_write_transaction(
                    [add],
                    "append",
                    self._table.schema(),
                    partition_by=[SHARD],
                    commit_properties=properties,
                    post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
                )
                self._failpoints.reach(FAILPOINT_COMMITTED)
                return version
            except (DeltaError, OSError) as error:
                failed = error
        raise Unavailable(f"other commits to {self._uri} were first {ATTEMPTS_MAX} times in a row") from failed

    def _catch_up(self, shard: int, seen: ShardState, commit_id: str, failed: Exception | None) -> int | None:
        """Go to the newest version. None: the shard's state still is `seen` there; else the version of our commit.

        `failed`: what was told of our commit, which may be there all the same.
        """
        before = self._table.version()
        try:
            self._table.update_incremental()
            newest = self._table.version()
            state = self._state_of(self._table, shard)
            since = self._table.history(newest - before) if failed is not None and newest > before else []
        except (DeltaError, OSError) as error:
            if failed is not None:
                raise OutcomeUnknown(f"cannot look whether a commit to {self._uri} came through: {error}") from error
            with delta_faults(f"read the feed {self._uri}"):
                raise
        ours = next((int(commit["version"]) for commit in since if commit.get(COMMIT_ID) == commit_id), None)
        if ours is not None:
            return ours
        if state != seen:
            raise Conflict(
                f"shard {shard} of {self._uri} has had commit {state.seq} since commit {seen.seq} was looked at",
                remedy="Begin the transaction again",
            )
        if failed is not None and newest == before:  # nobody was first: the storage fails
            if self._path is None:  # where what was given up may still arrive
                raise OutcomeUnknown(f"cannot tell whether a commit to {self._uri} comes through: {failed}") from failed
            with delta_faults(f"commit to the feed {self._uri}"):
                raise failed
        return None

    def _look_again(self, version: int) -> None:
        """Whether the log goes on from the commit that became this version, or had been cleaned far beyond it."""
        self._table = self._opened()
        later = self._table.version() - version
        with delta_faults(f"read the feed {self._uri}"):
            if later and len(self._table.history(later)) < later:
                raise Conflict(f"the log of {self._uri} was cleaned while a commit slept", remedy="Begin it again")

    def _sync(self, version: int) -> None:
        """What is acknowledged outlives a power loss too. Raises OutcomeUnknown."""
        try:
            self._synced(f"_delta_log/{version:020d}.json", "_delta_log")
        except OSError as error:
            raise OutcomeUnknown(f"cannot tell whether a commit to {self._uri} lasts: {error}") from error

    def _synced(self, *names: str) -> None:
        if self._path is not None:
            for name in names:
                sync(self._path / name)

    def _discard(self, name: str) -> None:
        """Free the space of a file that was not committed; on an object store vacuum does."""
        if self._path is not None:
            with suppress(OSError):
                (self._path / name).unlink(missing_ok=True)


def _told(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
