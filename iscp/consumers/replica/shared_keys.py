"""Conditions on keys, in which null equals null."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from iscp.core.sql_names import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column


def matches(first: str, second: str, columns: Sequence[str]) -> Column:
    """Whether the frames aliased `first` and `second` have the same values in `columns`."""
    each = [F.col(f"{first}.{quoted(name)}").eqNullSafe(F.col(f"{second}.{quoted(name)}")) for name in columns]
    return reduce(lambda one, other: one & other, each)
