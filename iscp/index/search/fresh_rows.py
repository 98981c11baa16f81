"""Caches the rows of fresh fragments for a process, as each search compares all rows that no segment covers.

The data of a fragment never change, but ever more of its rows are deleted. So what is cached is good for each version
of the index in which no more rows of the fragment live than were read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, assert_never, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iscp.index.lance.address_lookup import ADDRESS
from iscp.index.lance.index_columns import KEY, VECTOR
from iscp.index.lance.recent_values import RecentValues
from iscp.index.model.index_definition import Metric
from iscp.index.search.document_words import CodedColumns, CodedTexts

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of fresh rows that a process caches; what was not searched for longest goes first."""

TEXTS_MIN = 256
"""Rows of a fragment whose words are cached: fewer are read in a moment, and small indexes need no memory."""

ROWS_MAX = 20_000
"""Rows of a fragment that is cached: larger ones get a segment before many searches have read them."""

SEEN_MAX = 10_000
"""Fragments whose words are known to have been searched once. Those that are searched again are cached."""

_KEY_BYTES = 64
"""Bytes that a key is counted with besides its characters; they are an estimate."""

SQUARE_MIN, SQUARE_MAX = 1e-20, 1e38
"""Squares of lengths that single precision computes, whatever the numbers are; others need double precision."""

_DOUBTFUL_AT_ONCE = 1_024

_EPSILON, _TINY = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
_EPSILON_64, _LEAST = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).smallest_subnormal)

Reals = npt.NDArray[np.float64]
Addresses = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
_Name = tuple[object, ...]


class VectorRows:
    """Vectors of rows, one a line of a matrix; NaN stands for the numbers of a row that has none.

    Single precision says which may be the nearest, so that few have to be compared exactly.
    """

    def __init__(self, vectors: pa.FixedSizeListArray) -> None:
        flat = vectors.flatten().to_numpy(zero_copy_only=False)  # without the numbers of null
        given = flat.reshape(-1, vectors.type.list_size).astype(np.float32, copy=False)
        self.matrix = given
        if vectors.null_count:
            self.matrix = np.full((len(vectors), vectors.type.list_size), np.nan, np.float32)
            self.matrix[vectors.is_valid().to_numpy(zero_copy_only=False)] = given
        self._lengths: Reals = np.sqrt(_squares(self.matrix))

    @property
    def bytes(self) -> int:
        """Return how much memory they take."""
        return int(self.matrix.nbytes + self._lengths.nbytes)

    def may_be_nearest(
        self, query: Reals, living: npt.NDArray[np.bool_], most: int, metric: Metric
    ) -> npt.NDArray[np.int64]:
        """Return the numbers of living rows that may be among the `most` nearest; all others are not.

        A sum of n products in single precision differs from the exact one by at most (n + 2) eps |a| |b|, in whatever
        order it is added up (N. Higham, Accuracy and Stability of Numerical Algorithms, 3.1), and by twice that where
        the query was rounded too; a product that is too small for single precision, by no more than the least normal
        number. The query is scaled by a power of two, which changes no order, so that none of it is lost.
        """
        rows: npt.NDArray[np.int64] = np.flatnonzero(living & np.isfinite(self._lengths))
        if len(rows) <= most:
            return rows
        power = int(np.frexp(np.abs(query).max())[1])
        scaled, count = np.ldexp(query, -power), len(query)
        length = float(np.sqrt(np.square(scaled).sum()))
        with np.errstate(over="ignore", invalid="ignore"):  # those of foreign writers are left to the exact comparison
            # No product of matrices, whose threads wait for each other where other processes compute too.
            products = np.einsum("ij,j->i", self.matrix, scaled.astype(np.float32))[rows].astype(np.float64)
        lengths = self._lengths[rows]
        errors = 2 * (count + 2) * _EPSILON * lengths * length + 2 * count * (_TINY + math.ldexp(_LEAST, -power))
        match metric:
            case Metric.DOT:
                closeness = products
            case Metric.COSINE:
                with np.errstate(divide="ignore", invalid="ignore"):
                    closeness, errors = products / lengths, errors / lengths + (count + 2) * _EPSILON * length
            case Metric.L2:  # the square of the distance is |a|² - 2ab + |b|², the last of which is the same for all
                closeness = np.ldexp(products, power) - np.square(lengths) / 2
                errors = np.ldexp(errors, power) + (count + 2) * _EPSILON * np.square(lengths)
                # The exact comparison rounds too, so that it may find rows equal that are not.
                errors += (count + 4) * _EPSILON_64 * (np.square(lengths) + float(np.square(query).sum()))
            case _ as never:
                assert_never(never)
        # What is no number, as with a vector of zeros that somebody else has written, is left to the exact comparison.
        least = np.partition(np.nan_to_num(closeness - errors, nan=-np.inf), -most)[-most]
        chosen: npt.NDArray[np.int64] = rows[~(closeness + errors < least)]
        return chosen


def _squares(matrix: npt.NDArray[np.float32]) -> Reals:
    """Return the squares of the lengths of vectors, whose relative errors are those of single precision."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares: Reals = np.einsum("ij,ij->i", matrix, matrix).astype(np.float64)
    # In single precision these are too small or too large: few, of which each is computed by itself.
    doubtful = np.flatnonzero(~((squares > SQUARE_MIN) & (squares < SQUARE_MAX)))
    for begin in range(0, len(doubtful), _DOUBTFUL_AT_ONCE):
        some = doubtful[begin : begin + _DOUBTFUL_AT_ONCE]
        squares[some] = np.square(matrix[some], dtype=np.float64).sum(axis=1)
    return squares


class _RowContent(Protocol):
    @property
    def bytes(self) -> int: ...


C = TypeVar("C", bound=_RowContent)


@dataclass(frozen=True, slots=True)
class FreshRows(Generic[C]):
    """The rows of one fragment, in the order of their addresses: their keys, and what they are compared by."""

    addresses: Addresses
    keys: Sequence[str]
    content: C

    @property
    def bytes(self) -> int:
        """Return about how much memory they take."""
        keys = sum(map(len, self.keys)) + _KEY_BYTES * len(self.keys)
        return int(self.addresses.nbytes) + keys + self.content.bytes

    def living(self, addresses: Addresses) -> Flags | None:
        """Return which rows these addresses are of, which are sorted; None if some are of rows that were not read."""
        places = np.searchsorted(self.addresses, addresses)
        if len(addresses) and (
            places[-1] >= len(self.addresses) or not np.array_equal(self.addresses[places], addresses)
        ):
            return None
        living = np.zeros(len(self.addresses), np.bool_)
        living[places] = True
        return living


def _bytes(rows: FreshRows[_RowContent]) -> int:
    return rows.bytes


_CACHE: RecentValues[_Name, FreshRows[_RowContent]] = RecentValues(CACHED_BYTES_MAX, _bytes)
_SEEN: RecentValues[_Name, bool] = RecentValues(SEEN_MAX)


def cached_texts(
    dataset: LanceDataset, fragment: LanceFragment, columns: Mapping[str, str]
) -> FreshRows[CodedColumns] | None:
    """Return the rows of a fragment with their words; None if they are searched for the first time, or few, or many.

    `columns` has the column of words of each text column.
    """
    if not TEXTS_MIN <= fragment.physical_rows <= ROWS_MAX:
        return None
    name = _name(dataset, fragment, *sorted(columns.items()))
    if _CACHE.get(name) is None and _SEEN.get(name) is None:
        _SEEN.put(name, True)
        return None

    def coded(rows: pa.Table) -> CodedColumns:
        return CodedColumns({column: CodedTexts(rows[name].combine_chunks()) for column, name in columns.items()})

    return _cached(name, dataset, fragment, list(columns.values()), coded)


def are_cached_together(rows: int, dimension: int, bytes_max: int) -> bool:
    """Return whether the cache has room for so many vectors: fewer would drive each other out in each search."""
    return rows * dimension * np.dtype(np.float32).itemsize <= bytes_max


def cached_vectors(dataset: LanceDataset, fragment: LanceFragment) -> FreshRows[VectorRows] | None:
    """Return the rows of a fragment with their vectors; None if they are many."""
    if fragment.physical_rows > ROWS_MAX:
        return None
    name = _name(dataset, fragment, VECTOR)
    return _cached(name, dataset, fragment, [VECTOR], lambda rows: VectorRows(rows[VECTOR].combine_chunks()))


def living_rows(
    dataset: LanceDataset, cached: Mapping[int, FreshRows[C]], condition: str | None
) -> dict[int, Flags | None]:
    """Return for each fragment by its number which of its cached rows live and pass a filter of Lance's.

    None stands for a fragment of which more rows live than are cached.
    """
    if not cached:
        return {}
    fragments = [each for each in dataset.get_fragments() if each.fragment_id in cached]
    scanner = dataset.scanner(columns=[], filter=condition, fragments=fragments, with_row_address=True)
    addresses = np.sort(scanner.to_table()[ADDRESS].to_numpy().astype(np.uint64))
    found = {}
    for number, rows in cached.items():
        bounds = np.array([number, number + 1], np.uint64) << np.uint64(32)
        begin, end = np.searchsorted(addresses, bounds).tolist()
        found[number] = rows.living(addresses[begin:end])
    return found


def _name(dataset: LanceDataset, fragment: LanceFragment, *content: object) -> _Name:
    # The name of a file of data is never given again.
    return (dataset.uri, *(file.path for file in fragment.data_files()), *content)


def _cached(
    name: _Name,
    dataset: LanceDataset,
    fragment: LanceFragment,
    columns: Sequence[str],
    content_of: Callable[[pa.Table], C],
) -> FreshRows[C]:
    if (found := _CACHE.get(name)) is not None:
        return cast(FreshRows[C], found)
    rows = dataset.scanner(
        columns=[KEY, *columns], fragments=[fragment], with_row_address=True, scan_in_order=True
    ).to_table()
    made = FreshRows(rows[ADDRESS].to_numpy().astype(np.uint64), rows[KEY].to_pylist(), content_of(rows))
    _CACHE.put(name, cast(FreshRows[_RowContent], made))
    return made
