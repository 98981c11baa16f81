"""Cached rows are those of a version only if all rows that live in it were read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from iscp.index.search.document_words import CodedTexts
from iscp.index.search.fresh_rows import FreshRows

ROWS = FreshRows(
    np.array([2**32, 2**32 + 2, 2**32 + 3], np.uint64),
    ["a", "b", "c"],
    {"body": CodedTexts(pa.array([" x ", None, " y "], pa.string()))},
)


@pytest.mark.parametrize(
    ("living", "wanted"),
    [
        ([], [False, False, False]),
        ([0, 3], [True, False, True]),
        ([0, 2, 3], [True, True, True]),
        ([0, 1], None),  # a row that was deleted when the others were read
        ([3, 4], None),
    ],
)
def test_rows_live_whose_addresses_do(living: list[int], wanted: list[bool] | None) -> None:
    found = ROWS.living(np.array([2**32 + each for each in living], np.uint64))
    assert wanted == (None if found is None else found.tolist())


def test_the_memory_of_rows_is_counted() -> None:
    assert ROWS.bytes > ROWS.addresses.nbytes + ROWS.texts["body"].bytes
