"""Compute what a target must hold from the source table alone, and how far behind it was.

No function here uses code that derives targets: the check shows whether that code is right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

_COUNT = "_count"


def differences(expected: pa.Table, actual: pa.Table) -> pa.Table:
    """Return the rows that one has more often than the other, with `_count`: > 0 surplus in `actual`, < 0 missing
    there.

    Both are bags of rows: order means nothing, how often a row is there does. Raises ValueError if their columns have
    other names.
    """
    names = expected.column_names
    if sorted(names) != sorted(actual.column_names):
        raise ValueError(f"the columns are {actual.column_names}, not {names}")
    # The same values come in other Arrow types, depending on who reads (string, string_view).
    both = pa.concat_tables([_counted(expected, -1), _counted(actual.select(names).cast(expected.schema), 1)])
    sums = both.group_by(names).aggregate([(_COUNT, "sum")])
    sums = sums.rename_columns([*names, _COUNT])
    return sums.filter(pa.compute.not_equal(sums[_COUNT], 0))


def _counted(table: pa.Table, sign: int) -> pa.Table:
    return table.append_column(_COUNT, pa.array([sign] * table.num_rows, pa.int64()))


def lags_s(committed_at_s: Mapping[int, float], iterations: Iterable[tuple[int, int, float]]) -> list[float]:
    """Return for each source version how long it took to arrive at the target, in seconds.

    `iterations`: (from_version, to_version, ended at in Unix seconds), each over the versions (from, to]; the first one
    to end counts of several that cover a version.
    """
    arrived: dict[int, float] = {}
    for from_version, to_version, end_s in iterations:
        for version in range(from_version + 1, to_version + 1):
            arrived[version] = min(end_s, arrived.get(version, math.inf))
    return [max(0.0, arrived[version] - at_s) for version, at_s in sorted(committed_at_s.items()) if version in arrived]


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` of `values` do not exceed; None for no values."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
