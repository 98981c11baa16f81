"""Spark's functions on ulids agree with iscp/changefeed/model/ulid.py."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from iscp.changefeed.model.ulid import TIME_MS_MAX, UlidPlace, begin, parse_ulid, ulid_text, ulid_time_ms
from iscp.changefeed.spark import stream as changefeed_spark
from iscp.changefeed.spark.functions import register_functions, ulid_of, ulid_text_of
from tests.integration.changefeed_spark.conftest import Appended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLACES = [
    UlidPlace(0, 0),
    UlidPlace((TIME_MS_MAX << 16) | 0xFFFF, -(1 << 63)),
    begin(UlidPlace(0, 0), 1_700_000_000_000, b"\xff" * 10),
    *(
        UlidPlace(1_700_000_000_000 << 16 | high, low)
        for high, low in ((0, -3), (1, (1 << 62) - 3), (1, -(1 << 62) - 3))
    ),
]


def ulids() -> list[bytes]:
    drawn = random.Random(1)
    found = [place.ulid(number) for place in PLACES for number in (0, 5)] + [b"\xff" * 16]
    return found + [drawn.randbytes(16) for _ in range(200)]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.ulid().hex())
def test_rows_that_are_numbered_have_the_ulids_that_follow(spark: SparkSession, place: UlidPlace) -> None:
    number = F.col("id")
    for count in (1, 2, 40, 3_000):
        columns = ulid_of(place, count, number), ulid_text_of(place, count, number)
        rows = spark.range(0, count, numPartitions=1).select(*columns).collect()
        expected = [place.ulid(n) for n in range(count)]
        assert [bytes(row[0]) for row in rows] == expected
        assert [row[1] for row in rows] == [ulid_text(ulid) for ulid in expected]
    many = 1 << 50
    last = spark.range(many - 1, many).select(ulid_of(place, many, number), ulid_text_of(place, many, number)).first()
    assert last is not None
    assert (bytes(last[0]), last[1]) == (place.ulid(many - 1), ulid_text(place.ulid(many - 1)))


def test_texts_bytes_and_times_are_those_of_the_core(spark: SparkSession) -> None:
    spark.createDataFrame([(ulid,) for ulid in ulids()], "ulid binary").createOrReplaceTempView("ulids")
    rows = spark.sql(
        "SELECT ulid, ulid_text(ulid), ulid_binary(ulid_text(ulid)), ulid_binary(lower(ulid_text(ulid))), "
        "unix_micros(ulid_time(ulid)) FROM ulids"
    ).collect()
    assert len(rows) == len(ulids())
    for ulid, text, back, back_from_small, micros in rows:
        assert text == ulid_text(ulid)
        assert ulid == back == back_from_small == parse_ulid(text)
        assert micros == ulid_time_ms(ulid) * 1000


def test_the_lowest_ulid_of_a_millisecond_is_before_all_others_of_it(spark: SparkSession) -> None:
    drawn = random.Random(2)
    times_ms = [0, 1, 1_700_000_000_000, TIME_MS_MAX, *(drawn.randrange(TIME_MS_MAX) for _ in range(100))]
    spark.createDataFrame([(ms,) for ms in times_ms], "ms bigint").createOrReplaceTempView("times")
    for more_micros in (0, 999):
        found = spark.sql(f"SELECT ms, ulid_at(timestamp_micros(ms * 1000 + {more_micros})) FROM times").collect()
        assert [row[1] for row in found] == [ulid_text(UlidPlace(row[0] << 16, 0).ulid()) for row in found]
    # Outside of what a ulid can say: all, and none.
    assert spark.sql("SELECT ulid_at(timestamp'1969-12-31 00:00:00')").first()[0] == "0" * 26  # type: ignore[index]
    assert spark.sql("SELECT ulid_at(timestamp'+99999-01-01 00:00:00')").first()[0] == "7ZZZZZZZZZ" + "0" * 16  # type: ignore[index]


def test_what_is_no_ulid_has_no_bytes(spark: SparkSession) -> None:
    wrong = ["", "0" * 25, "0" * 27, "8" + "0" * 25, *("0" * 25 + char for char in "UuIiLlOo\né-"), "0" * 26 + "\n"]
    frame = spark.createDataFrame([(text,) for text in wrong], "text string")
    assert {row[0] for row in frame.selectExpr("ulid_binary(text)").collect()} == {None}


def test_null_and_bytes_of_another_length_give_null(spark: SparkSession) -> None:
    row = spark.sql(
        "SELECT ulid_time(X'00'), ulid_text(X'00'), ulid_time(NULL), ulid_text(NULL), ulid_binary(NULL), ulid_at(NULL)"
    ).first()
    assert row is not None
    assert set(row) == {None}


def test_a_bound_in_time_skips_files(spark: SparkSession, uri: str, append: Appended) -> None:
    ends = [append(0, [number]) for number in range(5)]
    frame = spark.read.format("delta").load(uri)
    moment = EPOCH + timedelta(milliseconds=ulid_time_ms(parse_ulid(ends[3])))
    found = frame.where(f"ulid_text >= ulid_at(timestamp'{moment.isoformat()}')")
    assert sorted(row[0] for row in found.select("row.id").collect()) == [3, 4]
    assert (len(frame.inputFiles()), len(found.inputFiles())) == (5, 2)
    assert not frame.where("ulid_text >= ulid_at(current_timestamp() - INTERVAL 1 HOUR)").inputFiles()


def test_registering_again_does_no_harm_and_other_sessions_have_nothing(spark: SparkSession) -> None:
    register_functions(spark)
    changefeed_spark.register(spark)
    names = {row[0] for row in spark.sql("SHOW USER FUNCTIONS LIKE 'ulid*'").collect()}
    assert names == {"ulid_at", "ulid_binary", "ulid_text", "ulid_time"}
    assert not spark.newSession().sql("SHOW USER FUNCTIONS LIKE 'ulid*'").collect()


def test_times_have_a_zone_whatever_a_session_takes_for_a_timestamp(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        register_functions(spark)
        row = spark.sql("SELECT typeof(ulid_time(X'000000000001' || X'00000000000000000000')) AS kind").first()
    finally:
        spark.conf.unset("spark.sql.timestampType")
        register_functions(spark)
    assert row is not None
    assert row.kind == "timestamp"
