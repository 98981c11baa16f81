"""Compares the rows that a target should have with those that it has; and shows a few rows of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from iscp.delta.log.table_opening import add_actions_of, open_delta
from iscp.delta.rows.data_file import ParquetRows
from iscp.delta.rows.net_changes import OP
from iscp.delta.rows.row_keys import key_hash, row_hashes, value_hash
from iscp.model.job.start_rule import SAMPLE_CHARACTERS_MAX, SAMPLES_MAX, Comparison, Sample
from iscp.model.rows.key_ranges import Digest, Ranges, Unequal, ranges_for, total, unequal
from iscp.model.sql.sql_names import quoted
from iscp.model.values.errors import FileLost, PermanentError
from iscp.ports.sink import Compared
from iscp.ports.source import ChangesUnavailableError
from iscp.spark.spark_errors import reading_changes, spark_faults
from iscp.spark.spark_frames import cached, release
from iscp.storage.bounded_parquet import Allowance, TooLargeError
from iscp.storage.delta_errors import delta_faults
from iscp.storage.regular_files import lies_elsewhere
from iscp.system.late_imports import F, T

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# --- the comparison ---------------------------------------------------------------------------------------------------
# Each table is reduced to digests of ranges of its keys (`digest`), by one aggregate. Only rows of ranges that differ
# are shuffled, and laid side by side by key, or without a key by their hashes.

_KEY, _CLASS, _RANGE, _WITHIN = "_iscp_key", "_iscp_class", "_iscp_range", "_iscp_within"
_HASHES = ("_iscp_first", "_iscp_second")
_WANTED, _PRESENT, _SIDE = "_iscp_wanted", "_iscp_held", "_iscp_side"
_ROW, _WANTED_ROW, _PRESENT_ROW = "_iscp_row", "_iscp_wanted_row", "_iscp_held_row"
_SHARED = "_iscp_shared"
_SUMS = tuple(f"_iscp_sum_{number}" for number in range(4))
_LOW_BITS = 0xFFFFFFFF


@contextmanager
def comparing(wanted: DataFrame, target: DataFrame, key: Sequence[str]) -> Iterator[Compared]:
    """Find how `target` differs from `wanted`, and what repairs it; both have the same columns, in any order.

    Raises ChangesUnavailable if the rows of `wanted` cannot be read any more.
    """
    if target.columns != wanted.columns:
        target = target.select(*[F.col(quoted(name)) for name in wanted.columns])
    with spark_faults("count the target's rows"):
        ranges = ranges_for(target.count())  # by statistics alone
    sides = Side(wanted, key), Side(target, key)
    found, rows = _narrow_ranges(sides, ranges)
    said = Comparison(*rows, ranges=found.ranges.number, ranges_differing=len(found.differing))
    if not found.differing:
        yield Compared(said)
        return
    differing = cached(_differing(sides, found.to_read, bool(key)))
    try:
        yield _count_differences(said, differing, wanted.schema, bool(key))
    finally:
        release(differing)


class Side:
    """One of the two tables: its rows with their hashes and the class of their keys, nothing of it computed yet."""

    def __init__(self, frame: DataFrame, key: Sequence[str]) -> None:
        hashes = row_hashes(frame)
        place = key_hash(frame, key) if key else hashes[0]
        self._frame = frame
        self._key = F.struct(*[F.col(quoted(name)) for name in key]) if key else F.struct(*hashes)
        self._hashed = [place.alias(_CLASS), *[each.alias(name) for each, name in zip(hashes, _HASHES, strict=True)]]

    def rows(self, ranges: Ranges) -> DataFrame:
        """Return the rows of some ranges, with all their columns."""
        row = F.expr(f"struct({', '.join(map(quoted, self._frame.columns))})")
        return _within(self._frame.select(self._key.alias(_KEY), row.alias(_ROW), *self._hashed), ranges)

    def digested(self, ranges: Ranges) -> DataFrame:
        hashed = _within(self._frame.select(*self._hashed), ranges)
        rows = hashed.select(F.pmod(_CLASS, F.lit(ranges.number)).alias(_RANGE), *_HASHES)
        return rows.groupBy(_RANGE).agg(F.count("*"), *[F.sum(half) for half in _halves()])

    def digests(self, ranges: Ranges) -> dict[int, Digest]:
        return {
            row[0]: Digest(row[1], (row[2] << 32) + row[3], (row[4] << 32) + row[5])
            for row in self.digested(ranges).collect()
        }


def _within(rows: DataFrame, ranges: Ranges) -> DataFrame:
    if ranges.of == 1:
        return rows
    numbers = pa.table({_WITHIN: pa.array(sorted(ranges.within), pa.int64())})
    wanted = rows.sparkSession.createDataFrame(numbers)
    return rows.join(F.broadcast(wanted), F.pmod(_CLASS, F.lit(ranges.of)) == F.col(_WITHIN), "left_semi")


def _halves() -> list[Column]:
    """Return the upper and lower 32 bits of both hashes: their sums are exact in 64 bits for 2^31 rows."""
    return [
        half for name in _HASHES for half in (F.shiftrightunsigned(name, 32), F.col(name).bitwiseAND(F.lit(_LOW_BITS)))
    ]


def _narrow_ranges(sides: tuple[Side, Side], ranges: Ranges) -> tuple[Unequal, tuple[int, int]]:
    """Find the ranges whose rows are to be read; return how many rows each table has in all, too."""
    rows: tuple[int, int] | None = None
    while True:
        with reading_changes("digest the source's rows"):
            source = sides[0].digests(ranges)
        with spark_faults("digest the target's rows"):
            target = sides[1].digests(ranges)
        rows = rows or (total(source).rows, total(target).rows)
        found = unequal(ranges, source, target)
        narrower = found.narrower()
        if narrower is None:
            return found, rows
        ranges = narrower


def _differing(sides: tuple[Side, Side], ranges: Ranges, keyed: bool) -> DataFrame:
    """Return one row for each key whose rows differ: how often each side has it, and one row of each side.

    Rows of the source that share a key are not wanted: they are stored elsewhere, or stop the job.
    """
    is_wanted = F.col(_SIDE) == 1
    wanted, target = (side.rows(ranges) for side in sides)
    by_key = (
        wanted.withColumn(_SIDE, F.lit(1))
        .unionByName(target.withColumn(_SIDE, F.lit(-1)))
        .groupBy(_KEY)
        .agg(
            F.sum(F.when(is_wanted, 1).otherwise(0)).alias(_WANTED),
            F.sum(F.when(is_wanted, 0).otherwise(1)).alias(_PRESENT),
            F.first(F.when(is_wanted, F.col(_ROW)), ignorenulls=True).alias(_WANTED_ROW),
            F.first(F.when(~is_wanted, F.col(_ROW)), ignorenulls=True).alias(_PRESENT_ROW),
            *[F.sum(half * F.col(_SIDE)).alias(name) for half, name in zip(_halves(), _SUMS, strict=True)],
        )
    )
    unequal_sums = reduce(lambda one, other: one | other, [F.col(name) != 0 for name in _SUMS])
    shared = (F.col(_WANTED) > 1) & F.lit(keyed)
    differs = shared | (F.col(_WANTED) != F.col(_PRESENT)) | unequal_sums
    rows = by_key.where(differs).withColumn(_SHARED, shared).drop(*_SUMS)
    return rows.withColumn(_WANTED, F.when(F.col(_SHARED), 0).otherwise(F.col(_WANTED)))


def _count_differences(said: Comparison, differing: DataFrame, schema: T.StructType, keyed: bool) -> Compared:
    wanted, present = F.col(_WANTED), F.col(_PRESENT)
    counts = {
        "missing": F.greatest(wanted - present, F.lit(0)),
        "extra": F.greatest(present - wanted, F.lit(0)),
        "different": ((wanted == present) & (wanted > 0)).cast("bigint"),
        "shared": F.col(_SHARED).cast("bigint"),
    }
    wrong = differing.where((wanted > 0) | (present > 0))
    with reading_changes("read the ranges that differ"):
        counted = differing.agg(*[F.coalesce(F.sum(count), F.lit(0)) for count in counts.values()]).collect()[0]
        shown = wrong.limit(SAMPLES_MAX).select(*_sample_columns(schema, keyed)).collect()
    samples = tuple(Sample(row[0], row[1], tuple(row[2])) for row in shown)
    found = dict(zip(counts, map(int, counted), strict=True))
    return Compared(replace(said, samples=samples, **found), _repair(wrong, schema, keyed))


def _sample_columns(schema: T.StructType, keyed: bool) -> list[Column]:
    """Return the columns of a sample."""
    wanted, present = F.col(_WANTED), F.col(_PRESENT)
    fault = F.when(wanted > present, "missing").when(wanted < present, "extra").otherwise("different")
    shown = F.col(_KEY) if keyed else F.coalesce(F.col(_WANTED_ROW), F.col(_PRESENT_ROW))
    text = F.to_json(shown, {"ignoreNullFields": "false"})
    names = F.array(*[F.when(_differ(field), F.lit(field.name)) for field in schema.fields])
    columns = F.when(fault == "different", F.array_compact(names)).otherwise(F.array().cast("array<string>"))
    return [fault, F.substring(text, 1, SAMPLE_CHARACTERS_MAX), columns]


def _differ(field: T.StructField) -> Column:
    wanted, present = (
        value_hash(F.col(row).getField(field.name), field.dataType) for row in (_WANTED_ROW, _PRESENT_ROW)
    )
    return wanted != present


def _repair(differing: DataFrame, schema: T.StructType, keyed: bool) -> DataFrame:
    """Return the changes that make the target equal, as for a sink's merge; without a key the rows to be appended."""
    if keyed:
        ops = (
            F.when(F.col(_WANTED) == 0, F.array(F.lit("d")))
            .when(F.col(_PRESENT) > 1, F.array(F.lit("d"), F.lit("n")))
            .otherwise(F.array(F.lit("u")))
        )
    else:
        missing = (F.col(_WANTED) - F.col(_PRESENT)).cast("int")
        ops = F.array_repeat(F.lit("i"), F.greatest(missing, F.lit(0)))
    each = differing.withColumn(OP, F.explode(ops))
    row = F.when(F.col(OP) == "d", F.col(_PRESENT_ROW)).otherwise(F.col(_WANTED_ROW))
    columns = [row.getField(field.name).alias(field.name) for field in schema.fields]
    return each.select(*columns, OP)


# --- first rows -------------------------------------------------------------------------------------------------------
# A few rows of a table that iscp has written are read without Spark, for people.

FIRST_ROWS_BYTES_MAX = 64 * 1024**2
"""Bytes of memory that the files of the first rows may take, one after another; a table that needs more is refused."""

_REMEDY = "Read the table by Spark"


def read_first_rows(uri: str, rows_max: int) -> list[dict[str, Any]]:
    """Return so many rows of a table at most, of its newest version, in no order, by the names of their columns.

    Raises TableNotFound, StorageError, and PermanentError for a table that has what iscp's own never have, or too much.
    """
    with delta_faults(f"read {uri}"):
        table = open_delta(uri)
        metadata, features = table.metadata(), {*(table.protocol().reader_features or ())}
        mapped = metadata.configuration.get("delta.columnMapping.mode", "none") != "none"
        if mapped or metadata.partition_columns or not features <= {"timestampNtz"}:
            raise _unreadable(uri, "has features that tables of rows left out do not have")
        adds = add_actions_of(table).to_pylist()
    found: list[dict[str, Any]] = []
    allowance = Allowance(FIRST_ROWS_BYTES_MAX)
    for add in adds:
        if len(found) >= rows_max:
            break
        if lies_elsewhere(add["path"]) or add["size_bytes"] > allowance.left:
            raise _unreadable(uri, f"has files of more than {FIRST_ROWS_BYTES_MAX // 1024**2} MiB, or elsewhere")
        found += _rows_of_file(uri, add["path"], add["size_bytes"], rows_max - len(found), allowance)
    return found


def _rows_of_file(uri: str, path: str, size: int, rows_max: int, allowance: Allowance) -> list[dict[str, Any]]:
    try:
        parquet = ParquetRows(uri, path, size)
        rows: list[dict[str, Any]] = parquet.read([*parquet.columns], allowance).slice(0, rows_max).to_pylist()
        return rows
    except TooLargeError:
        raise _unreadable(uri, f"has rows of more than {FIRST_ROWS_BYTES_MAX // 1024**2} MiB") from None
    except (ChangesUnavailableError, pa.ArrowException) as error:
        remedy = "Try again; if it lasts, resync the job"
        raise FileLost(f"cannot read {path} of {uri}: {error}", remedy=remedy) from error


def _unreadable(uri: str, why: str) -> PermanentError:
    return PermanentError(f"{uri} {why}", remedy=_REMEDY)
