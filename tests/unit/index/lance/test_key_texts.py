"""A key's text is the same for equal keys, and another for each other one, whatever their values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.core.values.errors import PermanentError
from iscp.index.lance.index_columns import HEAD_KEY
from iscp.index.lance.key_texts import key_texts

SIGNS = st.text(alphabet=["a", "\\", "|", "N", "W", "'", " ", "\0", "é", "🙂"], max_size=4)
PARTS = st.tuples(st.none() | SIGNS, st.none() | st.integers(-3, 3))


@given(st.lists(PARTS, min_size=2, max_size=12))
def test_keys_of_texts_and_numbers_are_distinguished(keys: list[tuple[str | None, int | None]]) -> None:
    rows = pa.table({"A": pa.array([key[0] for key in keys], pa.string()), "b": pa.array([key[1] for key in keys])})
    if rows["b"].type == pa.null():
        rows = rows.set_column(1, "b", rows["b"].cast(pa.int64()))
    texts = key_texts(rows, ["a", "B"]).to_pylist()
    assert {len({texts[place] for place, key in enumerate(keys) if key == one}) for one in keys} == {1}
    assert len(set(texts)) == len(set(keys))
    assert HEAD_KEY not in key_texts(rows, ["A"]).to_pylist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([True, False, None], pa.bool_()),
        ([Decimal("1.50"), Decimal("-1.50"), None], pa.decimal128(9, 2)),
        ([dt.date(2026, 1, 1), dt.date(1969, 12, 31), None], pa.date32()),
        ([dt.datetime(2026, 1, 1, 0, 0, 0, 1), dt.datetime(2026, 1, 1), None], pa.timestamp("us")),
        ([b"", b"\x00", b"\\N", None], pa.binary()),
        (["", "\\N", "N", None], pa.large_string()),
    ],
)
def test_values_of_each_type_that_identifies_rows_have_texts_of_their_own(values: list[Any], kind: pa.DataType) -> None:
    texts = key_texts(pa.table({"k": pa.array(values, kind)}), ["k"]).to_pylist()
    assert len(set(texts)) == len(values)
    assert all(isinstance(each, str) for each in texts)


def test_a_time_has_one_text_whatever_its_unit() -> None:
    at = [dt.datetime(2026, 1, 1, 12)]
    texts = [key_texts(pa.table({"k": pa.array(at, pa.timestamp(unit))}), ["k"])[0].as_py() for unit in ("s", "us")]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.int64())])
def test_types_that_identify_no_row_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(PermanentError, match="column k has the type"):
        key_texts(pa.table({"k": pa.array([None], kind)}), ["k"])
