"""The names of an index's parts in its Lance dataset, and the options with which Lance makes them.

The analysis of texts is iscp's (`text_analysis`), so Lance has to leave each word as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KEY_INDEX = "key"
VECTOR_INDEX = "vector"

_WORDS_INDEX = "words_"

TEXT_OPTIONS: Mapping[str, Any] = {
    "base_tokenizer": "whitespace",
    "with_position": True,
    "lower_case": False,
    "stem": False,
    "remove_stop_words": False,
    "ascii_folding": False,
    "max_token_length": None,
}
"""The options of an inverted index on words between spaces."""

VECTOR_KIND = "IVF_RQ"
"""Partitions by nearest centroid, and in them one bit for each dimension: the smallest index, and the fastest with
filters. Exact distances of the nearest candidates make up for the bits where vectors lie in clusters (ADR 45)."""

FINE_VECTOR_KIND = "IVF_SQ"
"""The same with eight bits for each dimension, for vectors that one bit cannot distinguish, such as random ones."""

BIT_DIMENSIONS_MIN = 64
"""Dimensions from which one bit for each is tried."""

VECTOR_OPTIONS: Mapping[str, Mapping[str, Any]] = {VECTOR_KIND: {"num_bits": 1}, FINE_VECTOR_KIND: {}}

PARTITION_ROWS = 1_000
"""Rows of a partition of vectors. Fewer rows need fewer distances where few partitions do, and more where a filter
needs all of them: 100 partitions of 100,000 rows were faster by a third with filters than 316 (ADR 45)."""

PARTITIONS_MAX = 4_096
"""Partitions of one segment; of more rows than these have, each has more."""


def words_index(number: int) -> str:
    """Return the name of the index on the words of the text column of this number."""
    return f"{_WORDS_INDEX}{number}"


def words_number(name: str) -> int | None:
    """Return the number of the text column whose words the index of this name has; None for another index."""
    number = name.removeprefix(_WORDS_INDEX)
    return int(number) if number != name and number.isdecimal() else None


def partitions(rows: int) -> int:
    """Return into how many partitions a segment of so many vectors is divided."""
    return max(1, min(PARTITIONS_MAX, rows // PARTITION_ROWS))
