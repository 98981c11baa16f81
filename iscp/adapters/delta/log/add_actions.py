"""Read which files a table has, as delta-rs lists them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from deltalake import DeltaTable


def add_actions_of(table: DeltaTable, *, flatten: bool = False) -> pa.Table:
    """Return a row for each file of the table's version, as `DeltaTable.get_add_actions` has it.

    They come by a stream: `pyarrow.table` loads pandas, to see whether it is given a frame of that.
    """
    return pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=flatten)).read_all()
