"""A file that is larger than what a range is to have is read by its row groups, whatever the table has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from iscp.core.config import BuildConfig
from iscp.core.progress import UNKNOWN, TableSize, total_size
from iscp.runtime.iteration.apply.range_build import PIECE_RANGES
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
