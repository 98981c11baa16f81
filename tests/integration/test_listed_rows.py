"""Rows of a table whose files were listed once are those that Delta reads, whatever the table may have."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F

from iscp.delta.log.commits import list_log
from iscp.delta.source.open_table import RowLookup
from iscp.delta.source.spark_read import LISTED_FILES_MAX, load_version, state_loader
from iscp.spark.session import SparkRuntime
from tests.integration.views.conftest import bag

pytestmark = pytest.mark.spark

TABLES = {
    "rows that are marked as deleted": [
        "CREATE TABLE {0} (a INT, b STRING) USING delta TBLPROPERTIES (delta.enableDeletionVectors = true)",
        "INSERT INTO {0} SELECT id, 'b' || id FROM range(100)",
        "DELETE FROM {0} WHERE a % 7 = 1",
        "UPDATE {0} SET b = 'x' WHERE a > 90",
    ],
    "partitions": [
        "CREATE TABLE {0} (a INT, d DATE, p_q STRING) USING delta PARTITIONED BY (d, p_q)",
        "INSERT INTO {0} SELECT id, date_add('2020-01-01', int(id % 3)), if(id % 2 = 0, NULL, 'x/y %') FROM range(20)",
        "DELETE FROM {0} WHERE a = 3",
    ],
    "names that are mapped": [
        "CREATE TABLE {0} (a INT, `b c` STRING) USING delta TBLPROPERTIES (delta.columnMapping.mode = 'name')",
        "INSERT INTO {0} VALUES (1, 'x'), (2, NULL)",
        "ALTER TABLE {0} RENAME COLUMN a TO z",
        "ALTER TABLE {0} DROP COLUMN `b c`",
        "ALTER TABLE {0} ADD COLUMN (a DOUBLE)",
        "INSERT INTO {0} VALUES (3, -0.0)",
    ],
    "types that were widened, and columns that files lack": [
        "CREATE TABLE {0} (a INT) USING delta TBLPROPERTIES "
        "(delta.enableTypeWidening = true, delta.feature.timestampNtz = 'supported')",
        "INSERT INTO {0} VALUES (1), (2)",
        "ALTER TABLE {0} ALTER COLUMN a TYPE BIGINT",
        "ALTER TABLE {0} ADD COLUMN (c VARCHAR(9), e CHAR(3), t TIMESTAMP_NTZ)",
        "INSERT INTO {0} VALUES (3000000000, 'x', 'y', TIMESTAMP_NTZ'2020-01-01 00:00:00')",
    ],
}


def unknown(files_max: int) -> None:
    """Of a log that is not read here."""


@pytest.mark.parametrize("known", [True, False], ids=["of actions read here", "of Delta's list"])
@pytest.mark.parametrize("statements", TABLES.values(), ids=TABLES)
@pytest.mark.slow(but=1)
def test_listed_rows_are_those_of_the_version(
    tmp_path: Path, spark_runtime: SparkRuntime, statements: list[str], *, known: bool
) -> None:
    session, uri, lookup = (
        spark_runtime.new_session(),
        str(tmp_path / "table"),
        RowLookup(state_loader(spark_runtime.root)),
    )
    for each in statements:
        session.sql(each.format(f"delta.`{uri}`"))
    for version in range(1, len(statements)):
        added = partial(lookup.added, uri, version) if known else unknown
        assert not known or added(LISTED_FILES_MAX)
        listed, wanted = load_version(session, uri, version, added), load_version(session, uri, version)
        assert listed.schema == wanted.schema
        assert bag(listed.toArrow()) == bag(wanted.toArrow())
        first = listed.columns[0]
        some = F.col(first).isin(2, 90)
        assert bag(listed.where(some).toArrow()) == bag(wanted.where(some).toArrow())


@pytest.mark.parametrize("struct", [False, True], ids=["as text", "as columns"])
@pytest.mark.slow(but=1)
def test_files_of_a_checkpoint_are_known_with_all_that_it_says_of_them(
    tmp_path: Path, spark_runtime: SparkRuntime, *, struct: bool
) -> None:
    session, uri, lookup = (
        spark_runtime.new_session(),
        str(tmp_path / "table"),
        RowLookup(state_loader(spark_runtime.root)),
    )
    properties = f"delta.enableDeletionVectors = true, delta.checkpoint.writeStatsAsStruct = {struct}"
    properties += f", delta.checkpoint.writeStatsAsJson = {not struct}, delta.checkpointInterval = 3"
    table = f"delta.`{uri}`"
    session.sql(f"CREATE TABLE {table} (a INT, p STRING) USING delta PARTITIONED BY (p) TBLPROPERTIES ({properties})")
    for number in range(3):
        session.sql(f"INSERT INTO {table} SELECT id, if(id % 2 = 0, NULL, 'x') FROM range({10 * number + 10})")
    session.sql(f"DELETE FROM {table} WHERE a % 3 = 1")
    assert list_log(uri).checkpoint
    version = DeltaTable(uri).version()
    assert lookup.added(uri, version, LISTED_FILES_MAX)
    listed = load_version(session, uri, version, partial(lookup.added, uri, version))
    assert bag(listed.toArrow()) == bag(load_version(session, uri, version).toArrow())


def test_a_table_without_files_or_with_many_is_listed_by_delta(tmp_path: Path, spark_runtime: SparkRuntime) -> None:
    session, uri, lookup = spark_runtime.new_session(), str(tmp_path), RowLookup(state_loader(spark_runtime.root))
    write_deltalake(uri, pa.table({"a": pa.array([], pa.int64())}))
    assert load_version(session, uri, 0, partial(lookup.added, uri, 0)).collect() == []
    for number in range(LISTED_FILES_MAX + 1):
        write_deltalake(uri, pa.table({"a": [number]}), mode="append")
    version = DeltaTable(uri).version()
    assert lookup.added(uri, version, LISTED_FILES_MAX) is None
    for each in (version - 1, version):
        assert load_version(session, uri, each, partial(lookup.added, uri, each)).count() == each
