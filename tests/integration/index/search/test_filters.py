"""A filter keeps the rows that the condition holds of in Spark, whatever the rows and the condition have."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from iscp.index.lance.lance_access import FALSE, TRUE
from iscp.index.search.filters import lance_filter
from tests.integration.index.search.random_filters import SCHEMA, drawn_condition, drawn_row
from tests.selection import in_full

if TYPE_CHECKING:
    from iscp.spark.session import SparkRuntime

ROWS = 200


@pytest.mark.parametrize("seed", in_full(range(20), 2))
def test_a_filter_keeps_the_rows_of_which_the_condition_holds(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    rows = [drawn_row(draw) for _ in range(ROWS)]
    table = pa.Table.from_pylist(rows, schema=SCHEMA).append_column("number", pa.array(range(ROWS)))
    dataset = lance.write_dataset(table, tmp_path / "rows")
    if seed % 2:
        for name in ("whole", "name", "day"):  # an index may read a condition in another way
            dataset.create_scalar_index(name, "BTREE")
    for _ in range(300):
        condition = drawn_condition(draw)
        made = lance_filter(condition.text, dataset.schema, SCHEMA.names)
        if made == TRUE:
            kept = list(range(ROWS))
        elif made == FALSE:
            kept = []
        else:
            kept = sorted(dataset.scanner(columns=["number"], filter=made).to_table()["number"].to_pylist())
        expected = [number for number, row in enumerate(rows) if condition.holds(row) is True]
        assert kept == expected, (seed, condition.text, made)


@pytest.mark.spark
@pytest.mark.slow
def test_the_meaning_of_drawn_conditions_is_sparks(spark_runtime: SparkRuntime) -> None:
    draw = random.Random(7)
    rows = [drawn_row(draw) for _ in range(60)]
    conditions = [drawn_condition(draw, 2) for _ in range(250)]
    frame = spark_runtime.root.createDataFrame(pa.Table.from_pylist(rows, schema=SCHEMA)).coalesce(1)
    found = frame.select(*(F.expr(each.text).alias(f"c{number}") for number, each in enumerate(conditions)))
    for row, result in zip(rows, found.collect(), strict=True):
        for condition, value in zip(conditions, result, strict=True):
            assert value == condition.holds(row), (condition.text, row)
