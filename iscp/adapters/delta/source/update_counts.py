"""Finds updates whose change data lack rows.

For an UPDATE delta-rs (1.6) takes all rows of the files that it rewrites, before and after, and leaves out of the
change data each row that has an equal on the other side. If all rows are different, only those go that stayed as they
were. If not, an updated row that becomes equal to a row that was there is lost, and so is the row that it was, if an
equal remains. Then there are no longer two rows for each one that was updated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from iscp.adapters.delta.rows.net_changes import CHANGE_TYPE, COMMIT_VERSION
from iscp.adapters.system.late_imports import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IMAGES = ("update_preimage", "update_postimage")


def find_lost_rows(changes: pa.Table | DataFrame, updates: Mapping[int, int]) -> dict[int, str]:
    """Return by version what is wrong with its change data. `updates` is as in SourceRange.

    An update that left a row as it was is taken for one that lost it.
    """
    if not updates:
        return {}
    counts = _count_by_arrow(changes) if isinstance(changes, pa.Table) else _count_by_spark(changes, updates)
    found = {}
    for version, rows in sorted(updates.items()):
        before, after = (counts[version, image] for image in _IMAGES)
        if not before == after == rows:
            found[version] = (
                f"version {version} is an UPDATE by delta-rs of {rows} rows whose change data have {before} of them "
                f"before and {after} after"
            )
    return found


def _count_by_arrow(changes: pa.Table) -> Counter[tuple[int, str]]:
    stamps = changes.select([COMMIT_VERSION, CHANGE_TYPE])
    counted = stamps.group_by(stamps.column_names).aggregate([([], "count_all")])
    return Counter({(row[COMMIT_VERSION], row[CHANGE_TYPE]): row["count_all"] for row in counted.to_pylist()})


def _count_by_spark(changes: DataFrame, updates: Mapping[int, int]) -> Counter[tuple[int, str]]:
    rows = changes.where(F.col(COMMIT_VERSION).isin([*updates])).groupBy(COMMIT_VERSION, CHANGE_TYPE).count().collect()
    return Counter({(row[0], row[1]): row[2] for row in rows})
