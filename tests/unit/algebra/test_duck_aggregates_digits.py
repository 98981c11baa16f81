"""Digits of up to 38 places, and their quotients, become the decimals that they are, or the statement raises."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import ROUND_HALF_UP, Context, Decimal, localcontext
from itertools import pairwise

import duckdb
import pyarrow as pa
import pytest

from iscp.algebra.duck_aggregates import NATIVE_DIGITS, Digits, quotient, scaled, unscaled
from iscp.algebra.result_types import DECIMAL_DIGITS_MAX

DRAW = random.Random(5)
WHOLE = [
    *(DRAW.randint(-(10**digits), 10**digits) for digits in range(DECIMAL_DIGITS_MAX) for _ in range(20)),
    *(sign * (10**digits + off) for digits in range(DECIMAL_DIGITS_MAX) for sign in (1, -1) for off in (-1, 0, 1)),
    *(10**DECIMAL_DIGITS_MAX - 1, 1 - 10**DECIMAL_DIGITS_MAX, 0),
]
EXACT = Context(prec=3 * DECIMAL_DIGITS_MAX, rounding=ROUND_HALF_UP)


@pytest.fixture(scope="module")
def ducks() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as database:
        database.register("texts", pa.table({"t": [str(each) for each in WHOLE]}))
        database.execute("CREATE TABLE digits AS SELECT t::HUGEINT h FROM texts")
        yield database


@pytest.mark.parametrize("scale", range(DECIMAL_DIGITS_MAX + 1))
def test_digits_are_scaled_exactly(ducks: duckdb.DuckDBPyConnection, scale: int) -> None:
    text = scaled(Digits("h", DECIMAL_DIGITS_MAX), f"decimal({DECIMAL_DIGITS_MAX},{scale})")
    found = [value for (value,) in ducks.execute(f"SELECT {text} FROM digits").fetchall()]
    with localcontext(EXACT):
        assert found == [Decimal(each).scaleb(-scale) for each in WHOLE]


@pytest.mark.parametrize(("precision", "scale"), [(1, 0), (9, 9), (18, 2), (19, 19), (37, 6), (38, 0), (38, 38)])
def test_digits_that_are_too_many_raise(ducks: duckdb.DuckDBPyConnection, precision: int, scale: int) -> None:
    for digits in (10**precision, -(10**precision)):
        few = [Digits(f"{digits}::BIGINT", precision + 1)] if precision < NATIVE_DIGITS else []
        for each in (*few, Digits(f"'{digits}'::HUGEINT", DECIMAL_DIGITS_MAX)):
            text = scaled(each, f"decimal({precision},{scale})")
            with pytest.raises(duckdb.Error):
                ducks.execute(f"SELECT {text}").fetchall()


@pytest.mark.parametrize("precision", range(1, DECIMAL_DIGITS_MAX + 1))
def test_decimals_have_the_digits_that_they_have(ducks: duckdb.DuckDBPyConnection, precision: int) -> None:
    """Each number of digits with each number of places, on both sides of what 64 bits hold."""
    fitting = [each for each in WHOLE if abs(each) < 10**precision]
    for scale in range(precision + 1):
        with localcontext(EXACT):
            decimals = [Decimal(each).scaleb(-scale) for each in fitting]
        ducks.register("decimals", pa.table({"d": pa.array(decimals, pa.decimal128(precision, scale))}))
        digits = unscaled("d", precision, scale)
        found = ducks.execute(f"SELECT {digits.text} FROM decimals").fetchall()
        assert [value for (value,) in found] == fitting, (precision, scale)


@pytest.mark.parametrize("most", [1, 2, 9, 17, NATIVE_DIGITS, NATIVE_DIGITS + 1, 30, 36])
@pytest.mark.parametrize("below", [1, 9, NATIVE_DIGITS, NATIVE_DIGITS + 1, 30])
@pytest.mark.parametrize("places", [0, 1, 6, -1, -6])
def test_quotients_are_rounded_half_away_from_zero(
    ducks: duckdb.DuckDBPyConnection, most: int, below: int, places: int
) -> None:
    if max(most + places, below - places) >= DECIMAL_DIGITS_MAX - 1:
        return  # such quotients raise
    above = [each for each in WHOLE if abs(each) < 10**most]
    pairs = [(each, DRAW.choice([1, -1]) * DRAW.randint(1, 10**below - 1)) for each in above]
    pairs += [(each * other, 2 * other) for each in (1, -1, 3, -5) for other in (1, 2, -4) if most > 1]  # halves
    kinds = ["BIGINT" if digits <= NATIVE_DIGITS else "HUGEINT" for digits in (most, below)]
    text = quotient(
        Digits(f"t1::{kinds[0]}", most), places, Digits(f"t2::{kinds[1]}", below), f"decimal({DECIMAL_DIGITS_MAX},0)"
    )
    ducks.register("pairs", pa.table({"t1": [str(one) for one, _ in pairs], "t2": [str(other) for _, other in pairs]}))
    found = [value for (value,) in ducks.execute(f"SELECT {text} FROM pairs").fetchall()]
    with localcontext(EXACT):
        exact = [(Decimal(one).scaleb(places) / other).quantize(Decimal(1)) for one, other in pairs]
    assert found == exact


@pytest.mark.parametrize("digits", [(17, 2), (27, 4), (38, 6)])
def test_quotients_of_quotients_stay_short(digits: tuple[int, int]) -> None:
    """Texts grow as fast as a rounded quotient needs them twice, however each value is tried."""
    text, kind = "c12", "decimal({},{})".format(*digits)
    lengths = []
    for _ in range(6):
        text = quotient(unscaled(text, *digits), digits[1], unscaled(text, *digits), kind)
        lengths.append(len(text))
    plain = max(later / before for before, later in pairwise(lengths[2:]))
    assert plain < 8, lengths
    assert lengths[1] < 20_000
