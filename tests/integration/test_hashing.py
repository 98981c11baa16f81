"""Rows that differ have different hashes, and rows that are equal have one, which Spark itself does not promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from iscp.delta.rows.row_keys import key_hash, row_hashes
from iscp.model.rows.key_ranges import condition_sql, hash_sql

if TYPE_CHECKING:
    from iscp.spark.session import SparkRuntime

pytestmark = pytest.mark.spark

# Of each list all rows differ, though they look alike to a hash that passes over nulls or runs elements together.
DIFFERENT = {
    "int, int": ["1, null", "null, 1", "1, 1", "null, null"],
    "string, string": ["'ab', 'c'", "'a', 'bc'", "'', null", "null, ''", "'', ''"],
    "string collate utf8_lcase, int": ["'A', 1", "'a', 1"],
    "array<int>, array<int>": [
        "array(1, 2), array(3)",
        "array(1), array(2, 3)",
        "array(1, null), array(2, 3)",
        "array(), null",
        "null, array()",
        "array(null), null",
        "null, null",
    ],
    "struct<a:int,b:int>, int": [
        "named_struct('a', 1, 'b', null), 1",
        "named_struct('a', null, 'b', 1), 1",
        "named_struct('a', null, 'b', null), 1",
        "null, 1",
    ],
    "map<string,int>, int": ["map('a', 1), 1", "map('a', null), 1", "map('b', 1), 1", "map(), 1", "null, 1"],
    "array<map<string,array<int>>>, int": [
        "array(map('a', array(1)), map('b', array(2))), 1",
        "array(map('b', array(2)), map('a', array(1))), 1",
        "array(map('a', array(1), 'b', array(2))), 1",
    ],
    "variant, int": ["""parse_json('"1"'), 1""", "parse_json('1'), 1", "parse_json('null'), 1", "null, 1"],
}
EQUAL = {
    "double, float": ["-0.0, 'NaN'", "0.0, 'NaN'"],
    "map<string,int>, array<double>": ["map('a', 1, 'b', 2), array(-0.0)", "map('b', 2, 'a', 1), array(0.0)"],
}


def rows(kinds: str, values: list[str]) -> str:
    """A query for rows of two values, cast to two kinds."""
    first, second = split(kinds)
    return " UNION ALL ".join(
        f"SELECT cast({one} AS {first}) AS a, cast({two} AS {second}) AS b" for one, two in map(split, values)
    )


def split(pair: str) -> tuple[str, str]:
    """At the comma that is not within brackets."""
    depth = 0
    for at, letter in enumerate(pair):
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "," and not depth:
            return pair[:at], pair[at + 2 :]
    raise AssertionError(pair)


def test_rows_have_one_hash_just_where_they_are_equal(spark_runtime: SparkRuntime) -> None:
    spark = spark_runtime.new_session()
    for count, lists in ((len, DIFFERENT), (lambda _: 1, EQUAL)):
        for kinds, values in lists.items():
            frame = spark.sql(rows(kinds, values))
            first, second = row_hashes(frame)
            counted = frame.select(first.alias("x"), second.alias("y")).agg(
                F.count_distinct("x"), F.count_distinct("y"), F.count_if(F.col("x") == F.col("y"))
            )
            assert tuple(counted.collect()[0]) == (count(values), count(values), 0), kinds


def test_keys_that_are_equal_have_one_hash(spark_runtime: SparkRuntime) -> None:
    frame = spark_runtime.new_session().sql("SELECT -0.0D AS `a.b`, 1 AS c UNION ALL SELECT 0.0D, 2")
    assert frame.select(key_hash(frame, ["A.B"]).alias("h")).distinct().count() == 1


# Of each list all values are one key, by Spark's `=`, in types that Delta may widen one to the other.
WIDENED = [
    ["CAST(5 AS TINYINT)", "5", "CAST(5 AS BIGINT)", "CAST(5 AS DOUBLE)", "CAST(5 AS DECIMAL(10, 2))"],
    ["12345678", "CAST(12345678 AS DOUBLE)", "CAST(12345678 AS DECIMAL(20, 0))"],
    ["DATE'2024-03-01'", "TIMESTAMP_NTZ'2024-03-01 00:00:00'"],
    ["CAST(0.0 AS DOUBLE)", "CAST('-0.0' AS DOUBLE)"],
    ["9223372036854775807", "CAST('9223372036854775807' AS DECIMAL(38, 0))"],
    ["X'00FF'", "X'00FF'"],
]


def test_a_key_stays_in_its_range_when_its_type_is_widened(spark_runtime: SparkRuntime) -> None:
    session = spark_runtime.new_session()
    for values in WIDENED:
        rows = [session.sql(f"SELECT {hash_sql(['k'])} FROM (SELECT {each} AS k)").collect() for each in values]
        hashes = {row[0] for (row,) in rows}
        assert len(hashes) == 1, values


@pytest.mark.further  # each time: the hashes above
def test_the_ranges_of_a_level_are_about_as_large_as_each_other(spark_runtime: SparkRuntime) -> None:
    frame = (
        spark_runtime.new_session().range(64_000).selectExpr("id", "CONCAT('key-', id) AS name", "id * 4194304 AS far")
    )
    for key in (["id"], ["name"], ["far", "name"]):
        counts = frame.selectExpr(*[f"count_if({condition_sql(key, each)})" for each in range(16, 32)]).collect()[0]
        assert sum(counts) == 64_000
        assert max(counts) < 1.1 * min(counts)
