"""Digits of up to 38 places become the decimal that they are, or the statement raises."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Context, Decimal, localcontext

import duckdb
import pyarrow as pa
import pytest

from iscp.algebra.duck_aggregates import scaled
from iscp.algebra.result_types import DECIMAL_DIGITS_MAX

DRAW = random.Random(5)
WHOLE = [
    *(DRAW.randint(-(10**digits), 10**digits) for digits in range(DECIMAL_DIGITS_MAX) for _ in range(20)),
    *(sign * 10**digits for digits in range(DECIMAL_DIGITS_MAX) for sign in (1, -1)),
    *(10**DECIMAL_DIGITS_MAX - 1, 1 - 10**DECIMAL_DIGITS_MAX, 0),
]


@pytest.fixture(scope="module")
def ducks() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as database:
        database.register("texts", pa.table({"t": [str(each) for each in WHOLE]}))
        database.execute("CREATE TABLE digits AS SELECT t::HUGEINT h FROM texts")
        yield database


@pytest.mark.parametrize("scale", range(DECIMAL_DIGITS_MAX + 1))
def test_digits_are_scaled_exactly(ducks: duckdb.DuckDBPyConnection, scale: int) -> None:
    text = scaled("h", f"decimal({DECIMAL_DIGITS_MAX},{scale})")
    found = [value for (value,) in ducks.execute(f"SELECT {text} FROM digits").fetchall()]
    with localcontext(Context(prec=2 * DECIMAL_DIGITS_MAX)):
        assert found == [Decimal(each).scaleb(-scale) for each in WHOLE]


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (9, 9), (18, 2), (19, 19), (37, 6), (38, 0), (38, 38)])
def test_digits_that_are_too_many_raise(ducks: duckdb.DuckDBPyConnection, precision: int, scale: int) -> None:
    for digits in (10**precision, -(10**precision)):
        text = scaled(f"'{digits}'::HUGEINT", f"decimal({precision},{scale})")
        with pytest.raises(duckdb.Error):
            ducks.execute(f"SELECT {text}").fetchall()
