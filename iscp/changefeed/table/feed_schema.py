"""The form of a Delta table that is a changefeed: its columns and properties, the actions of its commits, columns that
it has to be given, and the columns of ulids.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.table import ProtocolVersions
from deltalake.transaction import AddAction, RemoveAction

from iscp import __version__
from iscp.changefeed.model.ulid import ALPHABET, TEXT_CHARS, ULID_BYTES, UlidPlace, ulid_text
from iscp.delta.log.commits import COMMIT_ID, commit_file
from iscp.model.values.errors import ConfigurationError, ErrorCode, InvalidRequest, PermanentError
from iscp.model.values.ids import TRACE_KEY, is_sampled
from iscp.storage import files
from iscp.storage.delta_errors import delta_faults
from iscp.storage.files import require_conditional_writes, require_place
from iscp.storage.locations import local_path, place
from iscp.storage.s3_settings import table_options
from iscp.storage.table_files import sync

# --- actions of commits -----------------------------------------------------------------------------------------------
# The actions that a feed's commits write to its log (Delta protocol, "Actions").

TIMES_WITHOUT_ZONE = "timestampNtz"
"""The feature that a table needs for them, of its readers and of its writers."""

_FEATURES_READER, _FEATURES_WRITER = 3, 7
"""Versions from which on a table names its features; a writer's earlier ones imply some."""

_IMPLIED = {
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
}
"""The versions of writers from which on features are implied, by features."""

_PLAIN = ProtocolVersions(1, 2, None, None)

Action = AddAction | RemoveAction | Mapping[str, Any]


def commit(actions: Sequence[Action], numbers: Mapping[str, int], commit_id: str, at_ms: int, trace: str = "") -> bytes:
    """Return the content of a commit file; `numbers` are stored in it by name (`txn`), and a `trace` for who follows
    it.
    """
    removes = any(isinstance(action, RemoveAction) for action in actions)
    about = {
        "timestamp": at_ms,
        "operation": "DELETE" if removes else "WRITE",
        "operationParameters": {} if removes else {"mode": "Append"},
        "isBlindAppend": not removes,
        "engineInfo": f"iscp:{__version__}",
        COMMIT_ID: commit_id,
        **({"userMetadata": json.dumps({TRACE_KEY: trace})} if is_sampled(trace) else {}),
    }
    txns = ({"appId": app, "version": value, "lastUpdated": at_ms} for app, value in numbers.items())
    return _lines([{"commitInfo": about}, *({"txn": txn} for txn in txns), *map(_action, actions)])


def first_commit(metadata: Mapping[str, Any], times_without_zone: bool, at_ms: int) -> bytes:
    """Return the commit of a table without rows."""
    protocol = with_feature(_PLAIN, TIMES_WITHOUT_ZONE) if times_without_zone else _plain_protocol()
    about = {"timestamp": at_ms, "operation": "CREATE TABLE", "operationParameters": {}}
    return _lines([{"commitInfo": {**about, "engineInfo": f"iscp:{__version__}"}}, protocol, metadata])


def with_feature(now: ProtocolVersions, feature: str) -> Mapping[str, Any]:
    """Return the protocol with one more feature of readers and writers, and with all that the versions so far imply.

    deltalake leaves those out, and Spark does not open a table with a column that takes no nulls then.
    """
    implied = [name for name, since in _IMPLIED.items() if since <= now.min_writer_version < _FEATURES_WRITER]
    return {
        "protocol": {
            "minReaderVersion": _FEATURES_READER,
            "minWriterVersion": _FEATURES_WRITER,
            "readerFeatures": sorted({*(now.reader_features or ()), feature}),
            "writerFeatures": sorted({*(now.writer_features or ()), *implied, feature}),
        }
    }


def _plain_protocol() -> Mapping[str, Any]:
    return {"protocol": {"minReaderVersion": _PLAIN.min_reader_version, "minWriterVersion": _PLAIN.min_writer_version}}


def _lines(actions: Sequence[Mapping[str, Any]]) -> bytes:
    return b"".join(json.dumps(action, separators=(",", ":")).encode() + b"\n" for action in actions)


def _action(action: Action) -> Mapping[str, Any]:
    if isinstance(action, Mapping):
        return action
    about = {
        "path": action.path,
        "partitionValues": action.partition_values,
        "size": action.size,
        "dataChange": action.data_change,
    }
    if isinstance(action, AddAction):
        return {"add": {**about, "modificationTime": action.modification_time, "stats": action.stats}}
    return {"remove": {**about, "deletionTimestamp": action.deletion_timestamp, "extendedFileMetadata": True}}


# --- columns and properties -------------------------------------------------------------------------------------------

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


# --- columns for other rows -------------------------------------------------------------------------------------------
# The columns that a feed has to be given for rows of other columns, and those of its own that these do not have.


def widened(present: pa.Schema, wanted: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """Return `present` with what `wanted` has beyond it: columns, whatever the case of their names, and fields of
    nested ones.

    Raises PermanentError for another type; columns of the `key` are given no more fields.
    """
    theirs = {each.name.lower(): each for each in wanted}
    fields = []
    for field in present:
        other = theirs.pop(field.name.lower(), field)
        kind = _holding(field.type, other.type)
        if kind is None or (kind != field.type and field.name in key):
            raise PermanentError(
                f"column {other.name} is of type {other.type} now, the feed has {field.type}",
                remedy="Bring the type back, or register the job again on another feed",
                code=ErrorCode.SCHEMA_CHANGED,
            )
        fields.append(field.with_type(kind))
    return pa.schema([*fields, *[each.with_nullable(True) for each in theirs.values()]])


def lost_names(present: pa.Schema, given: pa.Schema) -> tuple[str, ...]:
    """Return the columns, and the fields of nested ones as paths (`s.y`), that `present` has and `given` does not."""
    theirs = {each.name.lower(): each.type for each in given}
    found: list[str] = []
    for field in present:
        other = theirs.get(field.name.lower())
        found += [field.name] if other is None else _lost(field.type, other, field.name)
    return tuple(found)


def _holding(present: pa.DataType, given: pa.DataType) -> pa.DataType | None:
    """Return the type of the values of both, or None."""
    if present == given or _takes(present, given):
        return present
    if pa.types.is_struct(present) and pa.types.is_struct(given):
        return _holding_struct(present, given)
    if pa.types.is_list(present) and pa.types.is_list(given):
        inner = _holding(present.value_type, given.value_type)
        return None if inner is None else pa.list_(present.value_field.with_type(inner))
    if pa.types.is_map(present) and pa.types.is_map(given):
        key, item = _holding(present.key_type, given.key_type), _holding(present.item_type, given.item_type)
        return None if key is None or item is None else pa.map_(key, present.item_field.with_type(item))
    return None


def _holding_struct(present: pa.StructType, given: pa.StructType) -> pa.StructType | None:
    """Fields are taken by their very names: none is another but for its case."""
    theirs = {each.name: each for each in given}
    fields = []
    for field in present:
        other = theirs.pop(field.name, field)
        kind = _holding(field.type, other.type)
        if kind is None:
            return None
        fields.append(field.with_type(kind))
    if {name.lower() for name in theirs} & {field.name.lower() for field in fields}:
        return None
    return pa.struct([*fields, *[each.with_nullable(True) for each in theirs.values()]])


def _lost(present: pa.DataType, given: pa.DataType, path: str) -> list[str]:
    if pa.types.is_struct(present) and pa.types.is_struct(given):
        theirs = {each.name: each.type for each in given}
        lost = [
            [f"{path}.{field.name}"]
            if field.name not in theirs
            else _lost(field.type, theirs[field.name], f"{path}.{field.name}")
            for field in present
        ]
        return [name for each in lost for name in each]
    if pa.types.is_list(present) and pa.types.is_list(given):
        return _lost(present.value_type, given.value_type, f"{path}.element")
    if pa.types.is_map(present) and pa.types.is_map(given):
        of_keys = _lost(present.key_type, given.key_type, f"{path}.key")
        return [*of_keys, *_lost(present.item_type, given.item_type, f"{path}.value")]
    return []


def _takes(present: pa.DataType, given: pa.DataType) -> bool:
    """Return whether a number of the type `given` can be stored as one of the type `present`."""
    for kind in (pa.types.is_signed_integer, pa.types.is_floating):
        if kind(present) and kind(given):
            return bool(present.bit_width >= given.bit_width)
    return False


# --- ulids as columns -------------------------------------------------------------------------------------------------
# The ulids of many rows at once, as columns of Arrow: many millions a second.

ROWS_MAX = 50_000_000
"""Rows of one append; more are refused, as their texts have to fit into one array of Arrow, whose offsets are of 32
bits.
"""

_CHARS = np.frombuffer(ALPHABET.encode(), np.uint8)
_PAIRS = np.stack([np.repeat(_CHARS, 32), np.tile(_CHARS, 32)], axis=1).reshape(-1).view(np.uint16)
"""Two characters for ten bits."""

_CHUNK_ROWS = 1 << 14
"""Rows whose texts are made together: they stay in the processor's cache."""

_TEXT_OF_HIGH = 13
"""Characters of a text that its first half decides alone; the next has its last bit and four bits of the second."""


def ulid_columns(place: UlidPlace, count: int) -> tuple[pa.Array, pa.Array]:
    """Return the next `count` ulids: their bytes (binary), and their texts (string). Raises InvalidRequest."""
    if count > ROWS_MAX:
        raise InvalidRequest(
            f"{count} rows are more than one append takes", about="rows", remedy=f"Append at most {ROWS_MAX} at a time"
        )
    place.after(count)
    low = np.arange(count, dtype=np.uint64) + np.uint64(place.low & 0xFFFF_FFFF_FFFF_FFFF)
    return _binary(place, low), _text(place, low)


def _binary(place: UlidPlace, low: npt.NDArray[np.uint64]) -> pa.Array:
    halves = np.empty((len(low), 2), dtype=">u8")
    halves[:, 0] = place.high
    halves[:, 1] = low
    return _array(pa.binary(), halves, ULID_BYTES)


def _text(place: UlidPlace, low: npt.NDArray[np.uint64]) -> pa.Array:
    text = np.empty((len(low), TEXT_CHARS), dtype=np.uint8)
    text[:, :_TEXT_OF_HIGH] = np.frombuffer(ulid_text(place.ulid())[:_TEXT_OF_HIGH].encode(), np.uint8)
    for start in range(0, len(low), _CHUNK_ROWS):
        _end_of_text(place, low[start : start + _CHUNK_ROWS], text[start : start + _CHUNK_ROWS, _TEXT_OF_HIGH:])
    return _array(pa.string(), text, TEXT_CHARS)


def _end_of_text(place: UlidPlace, low: npt.NDArray[np.uint64], text: npt.NDArray[np.uint8]) -> None:
    text[:, 0] = _CHARS[_bits(low, 60) | np.uint64((place.high & 1) << 4)]
    pairs = text[:, 1:].view(np.uint16)
    for pair, shift in enumerate(range(50, -1, -10)):
        pairs[:, pair] = _PAIRS[_bits(low, shift) & np.uint64(1023)]


def _bits(low: npt.NDArray[np.uint64], shift: int) -> npt.NDArray[np.uint64]:
    """Return these bits of each ulid, or one value for all: as they follow one another, all of a chunk have the same
    but in their last bits.
    """
    first, last = low[:1] >> np.uint64(shift), low[-1:] >> np.uint64(shift)
    return first if first[0] == last[0] else low >> np.uint64(shift)


def _array(of: pa.DataType, values: npt.NDArray[np.generic], width: int) -> pa.Array:
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(of, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(values)])
