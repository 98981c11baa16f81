"""DuckDB in a node computes over the tables that it is given, within limits, and reaches nothing else."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iscp.algebra.duck_engine import DUCK_ENGINE, DuckEngine, NotComputedError, OutOfTimeError
from iscp.model.values.errors import StorageError
from iscp.ports.engine import investing
from iscp.ports.source import RowScan, UnreadRowsError
from tests.fakes.clock import FakeClock

NUMBERS = pa.schema([("n", pa.int64())])


def rows(count: int) -> pa.Table:
    return pa.table({"n": pa.array(range(count), pa.int64())})


def test_rows_have_the_wanted_types_and_times_their_zone() -> None:
    at = pa.array([-1, 0, None], pa.timestamp("us", "UTC"))
    with DuckEngine().cursor() as cursor:
        cursor.define("new:t", pa.table({"at": at, "n": pa.array([1, 2, 3], pa.int32())}))
        schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int16())])
        found = cursor.rows('SELECT "at", n FROM "new:t" ORDER BY n', schema)
    assert found.schema == schema
    assert found["at"].to_pylist() == at.to_pylist()
    assert found["n"].to_pylist() == [1, 2, 3]


def scan(parts: int, fault: Exception | None = None) -> RowScan:
    """Return a scan of rows that are numbered, 1,000 in each part, which ends by a fault if there is one."""

    def read() -> Iterator[pa.Table]:
        for part in range(parts):
            yield pa.table({"n": pa.array(range(part * 1_000, (part + 1) * 1_000), pa.int64())})
        if fault is not None:
            raise fault

    return RowScan(NUMBERS, 0, read)


def test_rows_of_a_scan_are_read_again_wherever_a_statement_names_them() -> None:
    with DuckEngine().cursor() as cursor:
        cursor.define("t", scan(5))
        joined = "SELECT sum(a.n + b.n)::BIGINT AS n FROM t a JOIN t b USING (n) WHERE n >= 10"
        for _ in range(2):
            assert cursor.rows(joined, NUMBERS)["n"].to_pylist() == [sum(range(10, 5_000)) * 2]


@pytest.mark.parametrize("fault", [UnreadRowsError("read by Spark alone"), StorageError("is not there")])
def test_a_scan_that_ends_too_early_has_no_result(fault: Exception) -> None:
    with DuckEngine().cursor() as cursor:
        cursor.define("t", scan(2, fault))
        with pytest.raises(NotComputedError, match=str(fault)):
            cursor.rows("SELECT max(n) AS n FROM t", NUMBERS)


def test_a_scan_that_takes_too_long_is_interrupted() -> None:
    def endless() -> Iterator[pa.Table]:
        while True:
            yield rows(1_000)

    with DuckEngine().cursor(refresh_s=0.3) as cursor:
        cursor.define("t", RowScan(NUMBERS, 0, endless))
        with pytest.raises(OutOfTimeError):
            cursor.rows("SELECT count(*) AS n FROM t", NUMBERS)


def test_a_value_that_does_not_fit_is_no_result() -> None:
    with DuckEngine().cursor() as cursor, pytest.raises(NotComputedError, match="types"):
        cursor.rows("SELECT 300 AS n", pa.schema([("n", pa.int8())]))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM read_parquet('{file}')",
        "SELECT * FROM '{file}'",
        "COPY (SELECT 1) TO '{file}.csv'",
        "ATTACH '{file}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SELECT * FROM secrets",
        "SELECT getenv('HOME')",
    ],
)
def test_a_statement_reaches_no_file_no_setting_and_no_variable(tmp_path: Path, text: str) -> None:
    secrets = rows(1)
    file = tmp_path / "rows.parquet"
    pq.write_table(secrets, file)
    with DuckEngine().cursor() as cursor, pytest.raises(NotComputedError):
        cursor.rows(text.format(file=file), NUMBERS)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.parquet"]


def test_a_table_is_that_of_one_cursor() -> None:
    engine = DuckEngine()
    with engine.cursor() as one, engine.cursor() as other:
        one.define("t", rows(1))
        with pytest.raises(NotComputedError):
            other.rows("SELECT n FROM t", NUMBERS)
    with engine.cursor() as later, pytest.raises(NotComputedError):
        later.rows("SELECT n FROM t", NUMBERS)


def test_a_statement_that_takes_too_long_is_interrupted() -> None:
    with DuckEngine(statement_s=0.2).cursor() as cursor:
        cursor.define("t", rows(30_000))
        began_s = time.monotonic()
        with pytest.raises(NotComputedError, match=r"(?i)interrupt") as error:
            cursor.rows("SELECT count(*) AS n FROM t a, t b, t c WHERE a.n + b.n > c.n", NUMBERS)
        assert not isinstance(error.value, OutOfTimeError), "the refresh has time left"
        assert time.monotonic() - began_s < 20
        assert cursor.rows("SELECT max(n) AS n FROM t", NUMBERS)["n"].to_pylist() == [29_999], "it goes on"


def test_what_is_invested_within_a_refresh_is_no_part_of_its_time() -> None:
    clock = FakeClock()
    with DuckEngine().cursor(0.5) as cursor:
        cursor.define("t", rows(1))
        with investing(clock):
            clock.advance(100.0)
        time.sleep(0.6)
        assert len(cursor.rows("SELECT n FROM t", NUMBERS)) == 1
    with DuckEngine().cursor(0.0) as cursor, pytest.raises(OutOfTimeError):
        cursor.rows("SELECT n FROM t", NUMBERS)


def test_a_statement_that_needs_too_much_memory_has_no_result() -> None:
    with DuckEngine(memory_bytes=16 * 1024**2).cursor() as cursor:
        cursor.define("t", rows(2_000))
        text = "SELECT count(*) AS n FROM (SELECT DISTINCT a.n * 20000 + b.n AS k, a.n AS x FROM t a, t b)"
        with pytest.raises(NotComputedError, match=r"(?i)memory"):
            cursor.rows(text, NUMBERS)


def test_refreshes_side_by_side_see_their_own_rows() -> None:
    def total(count: int) -> int:
        with DUCK_ENGINE.cursor() as cursor:
            cursor.define("t", rows(count))
            found = cursor.rows("SELECT sum(a.n)::BIGINT AS n FROM t a JOIN t b USING (n)", NUMBERS)
            return int(found["n"][0].as_py())

    counts = [*range(1, 400, 7)]
    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(total, counts)] == [count * (count - 1) // 2 for count in counts]


def test_cursors_go_on_where_another_one_has_had_the_database_discarded() -> None:
    """The functions of Python that they call are still there."""
    engine = DuckEngine()
    texts = pa.table({"t": ["1 0 0 0", "0 1 0 0"]})
    sums = "SELECT exact_sum(t) AS s FROM t"
    schema = pa.schema([("s", pa.float64())])
    with engine.cursor() as cursor:
        cursor.define("t", texts)
        before = cursor.rows(sums, schema)["s"].to_pylist()
        engine._discard()
        gc.collect()
        others = [lambda text: 42.0 for _ in range(100)]
        assert before == cursor.rows(sums, schema)["s"].to_pylist() == [1.0, 2.0**-40]
        assert len(others) == 100


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_a_time_that_is_infinity_to_duckdb_has_no_result(kind: pa.DataType) -> None:
    bits = pa.int32() if kind == pa.date32() else pa.int64()
    greatest = pa.array([2 ** (bits.bit_width - 1) - 1], bits).cast(kind)
    with DuckEngine().cursor() as cursor, pytest.raises(NotComputedError, match="infinity"):
        cursor.define("t", pa.table({"at": greatest}))
    with DuckEngine().cursor() as cursor:
        cursor.define("t", RowScan(pa.schema([("at", kind)]), 0, lambda: iter([pa.table({"at": greatest})])))
        with pytest.raises(NotComputedError, match="infinity"):
            cursor.rows("SELECT count(*) AS n FROM t", NUMBERS)


def test_no_statement_of_a_refresh_goes_on_for_longer_than_the_refresh_may() -> None:
    """A later statement has what is left of the time; after it none begins."""
    began_s = time.monotonic()
    with DuckEngine().cursor(refresh_s=0.3) as cursor:
        assert len(cursor.rows("SELECT 1::BIGINT AS n", NUMBERS)) == 1
        with pytest.raises(OutOfTimeError, match="INTERRUPT"):
            cursor.rows(
                "SELECT count(*) AS n FROM range(100000000) a, range(100000) b WHERE a.range + b.range = 1", NUMBERS
            )
        with pytest.raises(OutOfTimeError, match="as long as a recomputation"):
            cursor.rows("SELECT 1::BIGINT AS n", NUMBERS)
    assert time.monotonic() - began_s < 10
