"""The columns and properties that make a Delta table a changefeed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, Schema

from iscp.adapters.delta.log.commits import commit_file
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.adapters.delta.storage.conditional_writes import require_conditional_writes
from iscp.adapters.delta.storage.delta_errors import delta_faults
from iscp.adapters.delta.storage.locations import local_path, place
from iscp.adapters.delta.storage.table_files import sync
from iscp.adapters.delta.storage.table_place import require_place
from iscp.changefeed.table.feed_actions import TIMES_WITHOUT_ZONE, first_commit
from iscp.core.values.errors import ConfigurationError, InvalidRequest

FORMAT = 1
FORMAT_PROPERTY = "iscp.changefeed.format"
FEED_PROPERTY = "iscp.changefeed.id"
SHARDS_PROPERTY = "iscp.changefeed.shards"
KEY_PROPERTY = "iscp.changefeed.key"
_READER_OF_MAPPED_NAMES = 2
_READER_FEATURES = frozenset({TIMES_WITHOUT_ZONE, "v2Checkpoint", "vacuumProtocolCheck"})
_EXPIRY_PROPERTY = "delta.setTransactionRetentionDuration"

SHARDS_MAX = 1_024
"""Shards of a feed; more are refused."""

ULID, ULID_TEXT, FEED, SHARD = "ulid", "ulid_text", "feed", "shard"
KEY, OPERATION, VERSION, NET, ROW = "key", "operation", "version", "net", "row"
PARTITIONS = (FEED, SHARD)


@dataclass(frozen=True, slots=True)
class FeedDescription:
    """`row`: the columns of what is appended, which a feed has as the fields of its column `row`; `key`: names of some
    of them, empty where the feed has none."""

    feed_id: str
    shards: int
    row: pa.Schema
    key: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """Return all columns of the feed's table, in order."""
        key = [pa.field(KEY, pa.struct([self.row.field(name) for name in self.key]), nullable=False)]
        return pa.schema(
            [
                pa.field(ULID, pa.binary(), nullable=False),
                # Binary columns have no statistics, and every poll would have to read all files.
                pa.field(ULID_TEXT, pa.string(), nullable=False),
                pa.field(FEED, pa.string(), nullable=False),
                pa.field(SHARD, pa.int32(), nullable=False),
                *(key if self.key else []),
                pa.field(OPERATION, pa.string(), nullable=False),
                pa.field(VERSION, pa.int64()),
                pa.field(NET, pa.bool_(), nullable=False),
                pa.field(ROW, pa.struct(list(self.row)), nullable=False),
            ]
        )

    @property
    def file_schema(self) -> pa.Schema:
        """Return the columns of its files, without those that they are partitioned by."""
        return pa.schema([field for field in self.schema if field.name not in PARTITIONS])

    def partition(self, shard: int) -> dict[str, str | None]:
        return {FEED: self.feed_id, SHARD: str(shard)}

    def folder(self, shard: int) -> str:
        """Return the directory of a shard's files, below the table."""
        return "/".join(f"{name}={value}" for name, value in self.partition(shard).items())

    def refuse_shard(self, shard: int) -> None:
        """Raises InvalidRequest."""
        if not 0 <= shard < self.shards:
            raise InvalidRequest(f"the feed has no shard {shard}", about="shard", remedy=f"Use 0 to {self.shards - 1}")


def create_feed_table(uri: str, row: pa.Schema, shards: int, key: Sequence[str] = ()) -> None:
    """Make the table of a new feed. Raises InvalidRequest where there is one, or where there cannot be such a feed;
    StorageError where the directory that is to hold it is not there.
    """
    uri = place(uri)
    if type(shards) is not int or not 1 <= shards <= SHARDS_MAX:
        raise InvalidRequest(f"a feed has 1 to {SHARDS_MAX} shards, not {shards}", about="shards")
    if not len(row):
        raise InvalidRequest("the rows of a feed need at least one column", about="schema")
    if unknown := [name for name in key if name not in row.names]:
        raise InvalidRequest(
            f"names {', '.join(unknown)}, which the rows do not have",
            field="key",
            remedy=f"Their columns are {', '.join(row.names)}",
        )
    if len(set(key)) < len(key):
        raise InvalidRequest("names a column twice", field="key", remedy="Name each once")
    _refuse_unstorable(row)
    with delta_faults(f"open a table at {uri}"):
        # Also one whose log was cleaned, and has no first commit any more.
        made = not DeltaTable.is_deltatable(uri, storage_options=table_options(uri))
    if made:
        require_place(uri)
        require_conditional_writes(uri)
        with delta_faults(f"make the feed {uri}"):
            made = _create(uri, FeedDescription(str(uuid.uuid4()), shards, row, tuple(key)))
    if not made:
        raise InvalidRequest(f"there is a table at {uri} already", about="uri", remedy="Choose another place")


def _create(uri: str, description: FeedDescription) -> bool:
    """Create the table; return False if another one was first. Raises OSError."""
    now_ms = int(time.time() * 1000)
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(description.schema).to_json(),
        "partitionColumns": list(PARTITIONS),
        "configuration": {
            FORMAT_PROPERTY: str(FORMAT),
            FEED_PROPERTY: description.feed_id,
            SHARDS_PROPERTY: str(description.shards),
            KEY_PROPERTY: json.dumps(description.key),
            "delta.checkpointInterval": "50",
        },
        "createdTime": now_ms,
    }
    content = first_commit({"metaData": metadata}, has_times_without_zone(description.row), now_ms)
    with _folder(local_path(uri)):
        # Where the answer is lost, the request is repeated, and finds what it has made.
        return files.create(commit_file(uri, 0), content) or files.read(commit_file(uri, 0))[0] == content


@contextmanager
def _folder(table: Path | None) -> Iterator[None]:
    """Give a table's log a directory for the time of the block; what is made there outlives a power loss."""
    if table is None:
        yield
        return
    log = table / "_delta_log"
    made = [folder for folder in (log, table) if not folder.exists()]
    for folder in (table, log):
        folder.mkdir(exist_ok=True)
    yield
    for folder in (log, *(folder.parent for folder in made)):
        sync(folder)


def _refuse_unstorable(row: pa.Schema) -> None:
    """Refuse types that Delta lacks, or stores as others. Raises InvalidRequest."""
    for field in row:
        try:
            stored = pa.schema(Schema.from_arrow(pa.schema([field])).to_arrow()).field(0).type
        except Exception as error:  # deltalake's own has no class
            raise _unstorable(field, str(error)) from error
        if list(map(_plain, leaves(stored))) != list(map(_plain, leaves(field.type))):
            raise _unstorable(field, f"it becomes {stored}")
        if any(pa.types.is_timestamp(kind) and kind.unit != "us" for kind in leaves(field.type)):
            raise _unstorable(field, "its times are of microseconds")
        if any(not inner.nullable for inner in _within(field.type)):
            # Spark does not check whether there are any.
            raise InvalidRequest(
                f"column {field.name} of type {field.type} has parts that take no nulls",
                about="schema",
                remedy="Let them; columns themselves may take none",
            )


def _unstorable(field: pa.Field, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"column {field.name} is of type {field.type}, which a Delta table does not keep: {why}",
        about="schema",
        remedy="Choose another type, as timestamp('us', 'UTC') for a time",
    )


def _within(kind: pa.DataType) -> Iterator[pa.Field]:
    """Yield the fields in a nested type, but for a map's keys, which never are null."""
    if pa.types.is_map(kind):
        yield from (kind.item_field, *_within(kind.item_type))
    elif pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            yield kind.field(number)
            yield from _within(kind.field(number).type)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return the type, with one for all texts and one for all bytes, whatever their layout in Arrow."""
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) else kind


def leaves(kind: pa.DataType) -> Iterator[pa.DataType]:
    """The types of which a nested one is made, or itself."""
    if pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            yield from leaves(kind.field(number).type)
    else:
        yield kind


def has_times_without_zone(columns: Iterable[pa.Field]) -> bool:
    return any(pa.types.is_timestamp(kind) and kind.tz is None for field in columns for kind in leaves(field.type))


def described(table: DeltaTable) -> FeedDescription:
    """Raises ConfigurationError where the table is no feed, one of a newer iscp, one that would forget its state, or
    one whose files do not say what its rows are."""
    uri, properties = table.table_uri, table.metadata().configuration
    if FORMAT_PROPERTY not in properties:
        raise ConfigurationError(f"the table {uri} is no changefeed", about="uri", remedy="Check the path")
    if (format_ := int(properties[FORMAT_PROPERTY] or 0)) > FORMAT:
        raise ConfigurationError(
            f"{uri} is of format {format_}, this iscp knows {FORMAT}", remedy="Install a newer iscp"
        )
    if _EXPIRY_PROPERTY in properties:
        raise ConfigurationError(
            f"{uri} expires transaction ids, which hold the feed's state", remedy=f"Unset {_EXPIRY_PROPERTY} on it"
        )
    protocol = table.protocol()
    features = sorted(set(protocol.reader_features or ()) - _READER_FEATURES)
    if protocol.min_reader_version == _READER_OF_MAPPED_NAMES or features:
        raise ConfigurationError(
            f"{uri} was given what readers of its files do not know: {', '.join(features) or 'column mapping'}",
            remedy="Drop it (ALTER TABLE … DROP FEATURE), or begin another feed",
        )
    schema = pa.schema(table.schema().to_arrow())
    return FeedDescription(
        feed_id=properties[FEED_PROPERTY] or "",
        shards=int(properties[SHARDS_PROPERTY] or 0),
        row=pa.schema(list(schema.field(ROW).type)),
        key=tuple(json.loads(properties.get(KEY_PROPERTY) or "[]")),
    )
