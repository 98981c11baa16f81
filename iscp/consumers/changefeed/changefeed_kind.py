"""A changefeed: every change of a table, with what was before, in one order for each shard of the feed.

What cannot be followed by changes is a snapshot difference: the feed gets what has changed in all, marked as net.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from iscp.changefeed.model.feed_ports import FeedCommit, FeedSink
from iscp.consumers.changefeed.feed_sink import DeltaFeedSink
from iscp.consumers.validation import CONSUMER_PATH, check_columns, check_target, wanted_columns
from iscp.core import key_ranges as ranges
from iscp.core.errors import ErrorCode, InvalidRequest, PermanentError, TableNotFound
from iscp.core.iteration import ChangeDetail, DataType
from iscp.core.job_row import JobRow
from iscp.core.key_ranges import RANGES_MAX
from iscp.core.spec import ConsumerSpec, OnSchemaChange
from iscp.core.watermark import Position
from iscp.core.watermark_record import position_of, record_key
from iscp.ports.catalog import Catalog, TableDescription
from iscp.ports.consumer import ConsumeContext, Consumed, ConsumerEnvironment, Needs, Retriever

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARDS_DEFAULT = 1
"""Shards of a changefeed where the job does not say."""

SHARDS_MAX = RANGES_MAX
"""A range of a split table has at least one for itself then."""

_HASH, _CHANGE, _VERSION, _AT = "_key_hash", "_change_type", "_commit_version", "_commit_timestamp"
_SHARDS_PROPERTY, _KEY_PROPERTY = "iscp.changefeed.shards", "iscp.changefeed.key"
_UNKEPT = ("variant", "interval")
"""Types that a feed's rows cannot have."""


class ChangefeedKind:
    """The kind `changefeed` (port ConsumerKind)."""

    name = "changefeed"
    shared_target = False
    needs = Needs(ChangeDetail.ALL, stamped=True, sharded=True)

    def validate(self, spec: ConsumerSpec, source: TableDescription, catalog: Catalog) -> None:
        target = check_target(spec, source, catalog)
        if not spec.key:
            raise InvalidRequest("is missing", field=f"{CONSUMER_PATH}.key", remedy="Name what identifies a row")
        check_columns(spec, source, catalog)
        shards = _shards(spec)
        kept = {name.lower() for name in spec.columns or source.columns}
        for name, kind in source.columns.items():
            if name.lower() in kept and any(word in kind.lower() for word in _UNKEPT):
                raise InvalidRequest(
                    f"would keep {name}, which is of type {kind}",
                    field=f"{CONSUMER_PATH}.columns",
                    remedy="Name the columns to keep, without it",
                )
        _refuse_other_table(spec, target, shards, catalog)

    def target_of(self, spec: ConsumerSpec, catalog: Catalog) -> str:
        return catalog.normalize(spec.target) if spec.target else ""

    def columns(self, spec: ConsumerSpec, source: Sequence[str]) -> tuple[str, ...]:
        return wanted_columns(spec, source)

    def open(self, row: JobRow, environment: ConsumerEnvironment) -> ChangefeedConsumer:
        sink = environment.keep(
            (self.name, row.key.range_id),
            row.spec.consumer.target,
            lambda uri: DeltaFeedSink(uri, environment.clock, environment.failpoints),
        )
        return ChangefeedConsumer(row, sink)


def _shards(spec: ConsumerSpec) -> int | None:
    """How many a new feed is to have, None where it does not say; raises InvalidRequest."""
    if unknown := set(spec.options) - {"shards"}:
        raise InvalidRequest(
            f"has unknown names: {', '.join(sorted(unknown))}",
            field=f"{CONSUMER_PATH}.options",
            remedy="A changefeed takes `shards`",
        )
    shards = spec.options.get("shards")
    if shards is None:
        return None
    if (
        not isinstance(shards, int)
        or isinstance(shards, bool)
        or shards.bit_count() != 1
        or not 0 < shards <= SHARDS_MAX
    ):
        raise InvalidRequest(
            f"is {shards!r}",
            field=f"{CONSUMER_PATH}.options.shards",
            remedy=f"Use a power of two, at most {SHARDS_MAX}",
        )
    return shards


def _refuse_other_table(spec: ConsumerSpec, target: str, shards: int | None, catalog: Catalog) -> None:
    """A target has to be new, or a feed as the job would make it."""
    try:
        there = catalog.describe(target)
    except TableNotFound:
        return
    held, key = there.configuration.get(_SHARDS_PROPERTY), there.configuration.get(_KEY_PROPERTY, "[]")
    if held is None:
        fault = "is a table, and no changefeed"
    elif shards is not None and held != str(shards):
        fault = f"is a changefeed with {held} shards, not {shards}"
    elif int(held).bit_count() != 1 or int(held) > SHARDS_MAX:
        fault = f"is a changefeed with {held} shards, which keys cannot be spread over"
    elif [name.lower() for name in json.loads(key)] != [name.lower() for name in spec.key]:
        fault = f"is a changefeed with the key {key}"
    else:
        return
    raise InvalidRequest(
        f"{target} {fault}",
        field=f"{CONSUMER_PATH}.target",
        remedy="Choose a new path, or name what is there",
        code=ErrorCode.TARGET_UNUSABLE,
    )


class ChangefeedConsumer:
    """Keeps one range of the keys of a job's feed (ports RangedConsumer, TidyingConsumer)."""

    def __init__(self, row: JobRow, sink: FeedSink) -> None:
        self._row = row
        self._spec = row.spec.consumer
        self._sink = sink

    def position(self, row: JobRow) -> Position:
        key = record_key(row.key, self._spec.target)
        return position_of(self._sink.records([key])[key])

    def records(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        return self._sink.records(keys)

    def claim(self, context: ConsumeContext, source: DataFrame) -> Position:
        """Nothing is committed: the snapshot that follows is one commit, and fails what is on its way as well."""
        return context.position

    def tidy(self) -> None:
        self._sink.tidy()

    def consume(self, context: ConsumeContext, retriever: Retriever) -> Consumed:
        tail = retriever.data_type is DataType.TAIL
        first = retriever.next() if tail else None
        row = _row_schema(
            first[0].schema if first else pa.schema([]) if tail else to_arrow_schema(retriever.inserts.schema)
        )
        names = {name.lower(): name for name in row.names}
        key = [names.get(name.lower(), name) for name in self._spec.key]
        shards = _shards(self._spec) or SHARDS_DEFAULT
        with self._sink.begin(row, key, shards, self._row.key.range_id) as commit:
            if row.names:
                self._refuse_lost(commit, row)
            tables = _each(first, retriever) if tail else self._differences(commit, retriever)
            rows = sum(_add(commit, table, net=not tail) for table in tables)
            retriever.update_watermark(commit)
            commit.commit()
        return Consumed(retriever.record.position, rows, 0)

    def _differences(self, commit: FeedCommit, retriever: Retriever) -> Iterator[pa.Table]:
        where = ranges.condition_sql(self._spec.key, self._row.key.range_id)
        version = f"CAST({retriever.to_version} AS BIGINT) AS {_VERSION}"
        hashed = f"{ranges.hash_sql(self._spec.key)} AS {_HASH}"
        return commit.difference(retriever.inserts.drop(_HASH, _VERSION, _AT), where, (version, hashed))

    def _refuse_lost(self, commit: FeedCommit, row: pa.Schema) -> None:
        """With `on_schema_change` stop; otherwise the feed's rows have null from now on."""
        there = {name.lower() for name in row.names}
        lost = [name for name in commit.row.names if name.lower() not in there]
        if lost and self._row.spec.on_schema_change is OnSchemaChange.STOP:
            raise PermanentError(
                f"the source has no column {', '.join(lost)} any more",
                field="spec.iteration.on_schema_change",
                remedy="Bring it back; or set it to evolve: the feed has nulls there then",
                code=ErrorCode.SCHEMA_CHANGED,
            )


def _each(first: tuple[pa.Table, pa.Table] | None, retriever: Retriever) -> Iterator[pa.Table]:
    pair = first
    while pair is not None:
        yield pair[0]
        pair = retriever.next()


def _row_schema(schema: pa.Schema) -> pa.Schema:
    """The job's columns. All may be null in a feed, and what is in them: they may go, or come, while it is kept."""
    return pa.schema([_nullable(field) for field in schema if field.name not in (_HASH, _CHANGE, _VERSION, _AT)])


def _nullable(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(kind.field(number)) for number in range(kind.num_fields)])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, _nullable(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    return field.with_type(kind).with_nullable(True)


def _add(commit: FeedCommit, table: pa.Table, net: bool) -> int:
    """Each row to the shard that its key's hash lies in, in order."""
    rows, levels = _shaped(table, commit.row), commit.shards.bit_length() - 1
    if not len(rows):
        return 0
    operations, versions = table[_CHANGE].combine_chunks(), table[_VERSION].combine_chunks()
    if not levels:
        commit.add(0, rows, operations, versions, net)
        return len(rows)
    hashes = table[_HASH].to_numpy()
    numbers = ((hashes.view(np.uint64) ^ np.uint64(1 << 63)) >> np.uint64(64 - levels)).astype(np.int64)
    order = np.argsort(numbers, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(numbers[order])) + 1, len(order))
    begin = 0
    for end in ends.tolist():
        picked = pa.array(order[begin:end])
        shard = int(numbers[order[begin]])
        commit.add(shard, rows.take(picked), operations.take(picked), versions.take(picked), net)
        begin = end
    return len(rows)


def _shaped(table: pa.Table, row: pa.Schema) -> pa.Table:
    """The feed's columns; null where the source has none."""
    names = {name.lower(): name for name in table.schema.names}
    columns = []
    for field in row:
        name = names.get(field.name.lower())
        columns.append(pa.nulls(len(table), field.type) if name is None else table[name].cast(field.type))
    return pa.table(columns, schema=row)
