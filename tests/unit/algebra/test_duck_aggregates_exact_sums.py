"""Sums of doubles and of their squares are exact in whichever order they come, and are rounded once, or raise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iscp.algebra.duck_aggregates import moment_text, sum_text, whole_moment_text
from iscp.algebra.duck_engine import DuckEngine, NotComputedError

ENGINE = DuckEngine()
BITS_LEAST = 2.0**-120


def in_range(value: float) -> bool:
    return abs(value) < 2.0**55 and (Fraction(value) / Fraction(BITS_LEAST)).denominator == 1


VALUES = st.one_of(
    st.floats(-1e15, 1e15),
    st.floats(-1e-6, 1e-6),
    st.decimals(-10_000, 10_000, places=2).map(float),
    st.integers(-5, 5).map(float),
).filter(in_range)


def computed(values: Sequence[float]) -> tuple[float, float]:
    def total(text: str) -> str:
        return f"sum({text})"

    schema = pa.schema([("s", pa.float64()), ("m", pa.float64())])
    with ENGINE.cursor() as cursor:
        cursor.define("t", pa.table({"x": pa.array(values, pa.float64())}))
        text = f"SELECT {sum_text('x', total)}, {moment_text('x', 'count(x)', total)} FROM t"
        (row,) = cursor.rows(text, schema).to_pylist()
    return row["s"], row["m"]


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=12))
@example([-(2**31)] * 12)
def test_whole_numbers_have_the_moment_that_they_have_as_doubles(values: list[int]) -> None:
    _, exact = computed([*map(float, values)])
    with ENGINE.cursor() as cursor:
        cursor.define("t", pa.table({"x": pa.array([*map(float, values)], pa.float64())}))
        text = f"SELECT {whole_moment_text('x', 'count(x)', lambda each: f'sum({each})')} FROM t"
        (row,) = cursor.rows(text, pa.schema([("m", pa.float64())])).to_pylist()
    assert row["m"] == exact


@given(st.lists(VALUES, min_size=1, max_size=12))
@example([0.1] * 10)
@example([1e15, 0.1, -1e15])
@example([-7760620367004511.0, -7760620367004511.0, -7760620367004512.0])
@example([2.0**53, 1.0, 2.0**-60])
@example([-0.0])
def test_sums_are_rounded_once(values: list[float]) -> None:
    exact = [*map(Fraction, values)]
    moment = (len(exact) * sum(each * each for each in exact) - sum(exact) ** 2) / len(exact)
    total = math.fsum(values)
    assert computed(values) == (total, float(moment))
    assert math.copysign(1, computed(values)[0]) == math.copysign(1, total or 0.0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300, 5e-324, 1e-36])
def test_what_has_no_parts_raises(value: float) -> None:
    with pytest.raises(NotComputedError):
        computed([1.5, value])
