"""Finds rows of a dataset by their keys, and what a commit needs of those that go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.lance.index_columns import HEAD_KEY, KEY
from iscp.index.lance.lance_access import lance_faults

if TYPE_CHECKING:
    from lance import LanceDataset

KEYS_IN_FILTER_MAX = 20_000
"""Keys that a filter names; more are found by reading the column of keys, which costs as much by then."""

ADDRESS = "_rowaddr"


def quoted_text(text: str) -> str:
    """Return a text as a literal of Lance's filters."""
    return "'" + text.replace("'", "''") + "'"


def rows_with_keys(dataset: LanceDataset, keys: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """Return `columns`, the key and the address of all rows that have one of these keys. Raises
    StorageError.
    """
    with lance_faults(f"read {dataset.uri}"):
        return _rows_with_keys(dataset, keys, list(dict.fromkeys([KEY, *columns])))


def _rows_with_keys(dataset: LanceDataset, keys: Sequence[str], wanted: list[str]) -> pa.Table:
    if len(keys) <= KEYS_IN_FILTER_MAX:
        if not keys:
            return dataset.scanner(columns=wanted, with_row_address=True, limit=0).to_table()
        listed = ",".join(map(quoted_text, keys))
        return dataset.scanner(columns=wanted, filter=f"{KEY} IN ({listed})", with_row_address=True).to_table()
    sought = pa.array(keys, pa.string())
    found = []
    for batch in dataset.scanner(columns=wanted, with_row_address=True).to_batches():
        passing = batch.filter(pc.is_in(batch[KEY], value_set=sought))
        if len(passing):
            found.append(passing)
    return pa.Table.from_batches(found) if found else _rows_with_keys(dataset, [], wanted)


def head_row(dataset: LanceDataset, columns: Sequence[str]) -> pa.Table:
    """Return the row with the head; none where there is no such row.

    Each commit writes it into a fragment of its own, and a compaction leaves that alone, but has the last place itself.
    So all fragments of one row are read; if the head is in none of them, the whole dataset is searched.
    """
    single = [each for each in dataset.get_fragments() if each.physical_rows == 1]
    condition = f"{KEY} = {quoted_text(HEAD_KEY)}"
    if single:
        found = dataset.scanner(
            columns=list(columns), filter=condition, with_row_address=True, fragments=single
        ).to_table()
        if len(found):
            return found
    return dataset.scanner(columns=list(columns), filter=condition, with_row_address=True).to_table()
