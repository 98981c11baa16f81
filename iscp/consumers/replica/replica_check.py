"""Compares a replica with its source's rows, repairs what differs, and takes over a table that has them already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from iscp.adapters.delta.rows.row_difference import differing_rows
from iscp.adapters.delta.spark.arrow_frame import spark_schema
from iscp.adapters.delta.spark.spark_errors import spark_faults
from iscp.consumers.commit_tag import commit_tag
from iscp.consumers.shared_keys import find_shared_keys
from iscp.core.job.verification import Comparison
from iscp.core.rows.digest import ranges_for
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.errors import ErrorCode, PermanentError
from iscp.core.values.watermark import Position, Watermark
from iscp.ports.consumer import AdoptingCheck, ConsumeContext, Consumed
from iscp.ports.rows import Rows
from iscp.ports.sink import Compared, Sink
from iscp.ports.source import ChangeSource, ChangesUnavailableError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Filtering(Protocol):
    """Chooses those of the source's rows that the target should have."""

    def wanted(self, rows: Rows) -> Rows: ...


class ReplicaCheck(AdoptingCheck):
    """Compares and repairs one replica. `tables` are read as sources are."""

    def __init__(self, spec: ConsumerSpec, sink: Sink, filtering: Filtering, tables: ChangeSource) -> None:
        self._spec = spec
        self._sink = sink
        self._filtering = filtering
        self._tables = tables

    def compare_small(
        self, session: SparkSession, position: Position, source: DataFrame, schema: pa.Schema
    ) -> Comparison | None:
        key = self._spec.key
        if not key or position.dead.rows:
            return None
        try:
            with spark_faults("read the source's rows"):
                rows = source.toArrow().select(schema.names).cast(schema)
        except (pa.ArrowException, KeyError):
            return None
        wanted = self._filtering.wanted(Rows(lambda: source, lambda: rows)).table
        if wanted is None or not self._sink.schema_matches(spark_schema(wanted.schema).json()):
            return None
        try:
            target = self._tables.small_snapshot(self._spec.target, position.base_version)
        except ChangesUnavailableError:
            return None
        changes = None if target is None else differing_rows(wanted, target.rows, key)
        if target is None or changes is None or len(changes):
            return None
        return Comparison(len(wanted), len(target.rows), ranges=ranges_for(len(target.rows)).number)

    @contextmanager
    def compare(self, context: ConsumeContext, source: DataFrame) -> Iterator[Compared]:
        wanted = self._select_wanted(context, source)
        fits = self._sink.schema_matches if self._spec.key else self._sink.takes
        if not fits(wanted.schema.json()):
            raise PermanentError(
                f"the target's columns are not {', '.join(wanted.columns)}, or have other types",
                remedy="`iscp-admin notify` has a target of iscp brought to the source's columns",
                code=ErrorCode.SCHEMA_CHANGED,
            )
        with self._sink.compare(wanted, self._spec.key, context.position.base_version) as compared:
            yield compared

    def _select_wanted(self, context: ConsumeContext, source: DataFrame) -> DataFrame:
        wanted, key = self._filtering.wanted(Rows(lambda: source)).frame, self._spec.key
        if not context.position.dead.rows or (shared := find_shared_keys(wanted, key)) is None:
            return wanted
        shared.release()
        return shared.split(wanted, key)[0]

    def repair(self, context: ConsumeContext, compared: Compared, watermark: Watermark) -> Consumed:
        said, frame = compared.comparison, compared.repair
        if not self._spec.key and said.extra:
            raise PermanentError(
                f"{said.extra} rows are too many, and without a key none of them can be removed alone",
                about="repair",
                remedy="Have the target rebuilt with `iscp-admin job resync`",
                code=ErrorCode.TARGET_UNUSABLE,
            )
        tag = commit_tag(context, "repair", watermark.version, watermark)
        if frame is None:
            # Others have written, and all is equal again: the commit says so.
            return Consumed(self._sink.claim("", tag), 0, 0)
        rows = said.missing + said.extra + said.different
        return Consumed(self._sink.repair(context.session, frame, self._spec.key, tag, context.guard), rows, 0)

    def adopt(self, context: ConsumeContext, watermark: Watermark) -> Position:
        context.guard.check()
        return self._sink.claim("", commit_tag(context, "adopt", watermark.version, watermark))
