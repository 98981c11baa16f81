"""Caches the words of fresh fragments for a process, as each search reads all rows that no segment covers.

The data of a fragment never change, but ever more of its rows are deleted. So what is cached is good for each version
of the index in which no more rows of the fragment live than were read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from iscp.index.lance.address_lookup import ADDRESS
from iscp.index.lance.index_columns import KEY
from iscp.index.lance.recent_values import RecentValues
from iscp.index.search.document_words import CodedTexts

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of fresh rows that a process caches; what was not searched for longest goes first."""

ROWS_MIN = 256
"""Rows of a fragment that is cached: fewer are read in a moment, and thousands of small indexes need no memory."""

ROWS_MAX = 20_000
"""Rows of a fragment that is cached: larger ones get a segment before many searches have read them."""

SEEN_MAX = 10_000
"""Fragments that are known to have been searched once. Those that are searched again are cached."""

_KEY_BYTES = 64
"""Bytes that a key is counted with besides its characters; they are an estimate."""

Addresses = npt.NDArray[np.uint64]
_Name = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class FreshRows:
    """The rows of one fragment, in the order of their addresses, with the words of some columns."""

    addresses: Addresses
    keys: Sequence[str]
    texts: Mapping[str, CodedTexts]

    @property
    def bytes(self) -> int:
        """Return about how much memory they take."""
        keys = sum(map(len, self.keys)) + _KEY_BYTES * len(self.keys)
        return int(self.addresses.nbytes + keys + sum(each.bytes for each in self.texts.values()))

    def living(self, addresses: Addresses) -> npt.NDArray[np.bool_] | None:
        """Return which rows these addresses are of, which are sorted; None if some are of rows that were not read."""
        places = np.searchsorted(self.addresses, addresses)
        if len(addresses) and (
            places[-1] >= len(self.addresses) or not np.array_equal(self.addresses[places], addresses)
        ):
            return None
        living = np.zeros(len(self.addresses), np.bool_)
        living[places] = True
        return living


def _bytes(rows: FreshRows) -> int:
    return rows.bytes


_CACHE: RecentValues[_Name, FreshRows] = RecentValues(CACHED_BYTES_MAX, _bytes)
_SEEN: RecentValues[_Name, bool] = RecentValues(SEEN_MAX)


def cached_rows(
    root: str, dataset: LanceDataset, fragment: LanceFragment, columns: Mapping[str, str]
) -> FreshRows | None:
    """Return the rows of a fragment of the dataset at `root`; None if they are searched for the first time, or few, or
    many. `columns` has the column of words of each text column.
    """
    if not ROWS_MIN <= fragment.physical_rows <= ROWS_MAX:
        return None
    # The name of a file of data is never given again.
    name = (root, *(file.path for file in fragment.data_files()), *sorted(columns.items()))
    if (found := _CACHE.get(name)) is not None:
        return found
    if _SEEN.get(name) is None:
        _SEEN.put(name, True)
        return None
    return _CACHE.put(name, _read(dataset, fragment, columns))


def _read(dataset: LanceDataset, fragment: LanceFragment, columns: Mapping[str, str]) -> FreshRows:
    rows = dataset.scanner(
        columns=[KEY, *columns.values()], fragments=[fragment], with_row_address=True, scan_in_order=True
    ).to_table()
    texts = {column: CodedTexts(rows[name].combine_chunks()) for column, name in columns.items()}
    return FreshRows(rows[ADDRESS].to_numpy().astype(np.uint64), rows[KEY].to_pylist(), texts)
