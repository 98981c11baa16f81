"""A file that is larger than what a range is to have is read by its row groups, whatever the table has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from iscp.delta.source.spark_read import DeltaRangeReader
from iscp.engine.tail_apply import PIECE_RANGES
from iscp.model.build.build_task import PieceOfFile, piece_range, row_spans
from iscp.model.settings.config import BuildConfig
from iscp.model.values.progress import UNKNOWN, TableSize, total_size
from tests.integration.pipeline.conftest import BY_SPARK, Pipeline
from tests.integration.pipeline.test_builds import Cluster
from tests.selection import in_full

pytestmark = pytest.mark.spark

ROWS = 20_000


def one_file(columns: str, values: str, properties: str = "", *then: str) -> Sequence[str]:
    """A table whose rows are in one file of many row groups, and what is done with it then."""
    with_properties = f"TBLPROPERTIES ({properties})" if properties else ""
    return (
        f"CREATE TABLE SOURCE ({columns}) USING delta {with_properties}",
        "SET parquet.block.size = 20000",
        f"INSERT INTO SOURCE SELECT /*+ COALESCE(1) */ {values} FROM range({ROWS})",
        "SET parquet.block.size = 134217728",
        *then,
    )


ID_AND_TEXT = "id, repeat(cast(id AS STRING), 20)"
TABLES = {
    "plain": one_file("id BIGINT, v STRING", ID_AND_TEXT),
    "deletion vectors": one_file(
        "id BIGINT, v STRING",
        ID_AND_TEXT,
        "'delta.enableDeletionVectors' = 'true'",
        "DELETE FROM SOURCE WHERE id % 10 = 3",
    ),
    "rows tracked": one_file("id BIGINT, v STRING", ID_AND_TEXT, "'delta.enableRowTracking' = 'true'"),
    "rows tracked and deleted": one_file(
        "id BIGINT, v STRING",
        ID_AND_TEXT,
        "'delta.enableRowTracking' = 'true', 'delta.enableDeletionVectors' = 'true'",
        "DELETE FROM SOURCE WHERE id % 10 = 3",
    ),
    "names mapped": one_file(
        "id BIGINT, v STRING",
        ID_AND_TEXT,
        "'delta.columnMapping.mode' = 'name'",
        "ALTER TABLE SOURCE RENAME COLUMN v TO w",
    ),
    "ids mapped": one_file("id BIGINT, v STRING", ID_AND_TEXT, "'delta.columnMapping.mode' = 'id'"),
    "types widened": one_file(
        "id INT, v STRING",
        f"cast(id AS INT), {ID_AND_TEXT.partition(', ')[2]}",
        "'delta.enableTypeWidening' = 'true'",
        "ALTER TABLE SOURCE ALTER COLUMN id TYPE BIGINT",
    ),
    "a value of a partition": (
        "CREATE TABLE SOURCE (id BIGINT, v STRING, p STRING) USING delta PARTITIONED BY (p)",
        *one_file("", f"{ID_AND_TEXT}, 'a b%'")[1:],
    ),
}
DELETED = ROWS - ROWS // 10


def made(pipeline: Pipeline, name: str) -> Path:
    pipeline.create(*TABLES[name])
    (file,) = Path(pipeline.source).rglob("*.parquet")
    return file


@pytest.mark.parametrize("parts", in_full([5, 2]))
@pytest.mark.parametrize("name", in_full(TABLES, but=["plain", "deletion vectors"]))
@BY_SPARK
@pytest.mark.slow(but=1)
def test_a_target_holds_each_row_of_it_once(pipeline: Pipeline, name: str, parts: int) -> None:
    size = made(pipeline, name).stat().st_size
    cluster = Cluster(pipeline, BuildConfig(table_bytes_min=1, range_bytes=size // (PIECE_RANGES * parts)))
    driver = cluster.driver(pipeline.job("target"))
    (waits,) = driver.iterate()
    assert waits.build is not None
    assert size // waits.build.piece_bytes >= parts
    deleted = "deletion" in name or "deleted" in name
    rows = UNKNOWN if deleted else ROWS  # some are marked as deleted
    assert (waits.build.size.rows, waits.build.size.bytes) == (rows, size)
    assert waits.build.size.pieces == -(-size // waits.build.piece_bytes)
    driver.finish()
    done = total_size(driver.done[driver.rows[0].job_id])
    assert done == TableSize(DELETED if deleted else ROWS, size)
    pipeline.assert_holds("target", pipeline.source_by_spark())


@BY_SPARK
def test_of_other_ranges_nothing_is_read(pipeline: Pipeline) -> None:
    """What is damaged in one row group fails the ranges that have a part of it, and no others."""
    file = made(pipeline, "plain")
    footer = pq.ParquetFile(file).metadata
    damaged = footer.row_group(footer.num_row_groups // 2).column(1)
    with file.open("r+b") as opened:
        opened.seek(damaged.data_page_offset)
        opened.write(bytes(damaged.total_compressed_size // 2))
    piece_bytes, cuts = file.stat().st_size // 7, 5
    pieces = [piece_range(f"{file.name}#{number}", cuts) for number in range(8)]
    ids = dict[int, list[int]]()
    with pipeline.engine.session() as session:
        for range_id in set(pieces):
            rows = DeltaRangeReader(0).rows(session, pipeline.source, 1, range_id, piece_bytes)
            assert rows is not None
            with suppress(PySparkException, Py4JJavaError):
                ids[range_id] = rows.frame.toArrow()["id"].to_pylist()
    groups = [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]
    spans = {each: row_spans(groups, _pieces_in(file, pieces, each)) for each in set(pieces)}
    hit = sum(groups[: footer.num_row_groups // 2])
    expected = {
        each: [place for first, last in of for place in range(first, last)]
        for each, of in spans.items()
        if not any(first <= hit < last for first, last in of)
    }
    assert {each: sorted(found) for each, found in ids.items()} == expected
    assert len(expected) == len(spans) - 1


def _pieces_in(file: Path, pieces: Sequence[int], range_id: int) -> list[PieceOfFile]:
    return [PieceOfFile(file.name, number, len(pieces)) for number, each in enumerate(pieces) if each == range_id]
