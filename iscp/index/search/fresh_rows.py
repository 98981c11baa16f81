"""Caches the rows of fresh fragments for a process, as each search compares all rows that no segment covers.

The data of a fragment never change, but ever more of its rows are deleted. So what is cached is good for each version
of the index in which no more rows of the fragment live than were read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, assert_never, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from iscp.index.lance.index_columns import KEY, VECTOR
from iscp.index.lance.index_transaction import ADDRESS
from iscp.index.model.index_definition import Metric
from iscp.index.search.document_scores import CodedColumns, CodedTexts
from iscp.system.recent_values import RecentValues

if TYPE_CHECKING:
    from lance import LanceDataset, LanceFragment

CACHED_BYTES_MAX = 64 * 1024**2
"""Bytes of fresh rows that a process caches; what was not searched for longest goes first."""

TEXTS_MIN = 256
"""Rows of a fragment whose words are cached: fewer are read in a moment, and small indexes need no memory."""

ROWS_MAX = 20_000
"""Rows of a fragment that is cached: larger ones get a segment before many searches have read them."""

SEEN_MAX = 10_000
"""Fragments whose rows are known to have been searched once. Those that are searched again are cached."""

_KEY_BYTES = 64
"""Bytes that a key is counted with besides its characters; they are an estimate."""

SQUARE_MIN, SQUARE_MAX = 1e-20, 1e38
"""Squares of lengths that single precision computes, whatever the numbers are; others need double precision."""

_ROW_BYTES = 24 + _KEY_BYTES
"""Bytes that a row's address, length and key take besides its vector, as an estimate."""

_DOUBTFUL_AT_ONCE = 1_024

_EPSILON, _TINY = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
_EPSILON_64, _LEAST = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).smallest_subnormal)

Reals = npt.NDArray[np.float64]
Addresses = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
_Name = tuple[object, ...]


class VectorRows:
    """Vectors of rows, one a line of a matrix; NaN stands for the numbers of a row that has none."""

    def __init__(self, vectors: pa.FixedSizeListArray) -> None:
        flat = vectors.flatten().to_numpy(zero_copy_only=False)  # without the numbers of null
        given = _single(flat).reshape(-1, vectors.type.list_size)
        self.matrix = given
        if vectors.null_count:
            self.matrix = np.full((len(vectors), vectors.type.list_size), np.nan, np.float32)
            self.matrix[vectors.is_valid().to_numpy(zero_copy_only=False)] = given
        self.lengths: Reals = np.sqrt(_squares(self.matrix))

    @property
    def bytes(self) -> int:
        """Return how much memory they take."""
        return int(self.matrix.nbytes + self.lengths.nbytes)


class NearestBound:
    """The bound, by single precision, that all of the `most` nearest vectors to a query reach.

    Single precision says which rows may be the nearest, so that few have to be compared exactly. A sum of n products
    differs in it from the exact one by at most (n + 2) eps |a| |b|, in whatever order it is added up (N. Higham,
    Accuracy and Stability of Numerical Algorithms, 3.1), and by twice that where the query was rounded too; a product
    that is too small for it, by no more than the least normal number. The query is scaled by a power of two, which
    changes no order, so that none of it is lost.
    """

    def __init__(self, query: Reals, most: int, metric: Metric) -> None:
        self._most, self._metric = most, metric
        self._power = int(np.frexp(np.abs(query).max())[1])
        scaled = np.ldexp(query, -self._power)
        self._query = scaled.astype(np.float32)
        self._length = float(np.sqrt(np.square(scaled).sum()))
        self._square = float(np.square(query).sum())
        self._nearest: Reals = np.empty(0)
        self.least = -math.inf
        """How close the rows that were compared so far prove the last of the nearest to be, at the least."""

    def compare(self, rows: VectorRows, living: Flags) -> tuple[Numbers, Reals]:
        """Return the numbers of the living rows that have a vector, and how close each of them is at the most.

        What is below `least` by then, or after more rows, is not among the nearest.
        """
        numbers: Numbers = np.flatnonzero(living & np.isfinite(rows.lengths))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            closeness, errors = self._closeness(rows, numbers)
            lower, upper = closeness - errors, closeness + errors
        # What single precision cannot compute, as a vector of zeros that somebody else has written, may be anywhere.
        unknown = ~(np.isfinite(lower) & np.isfinite(upper))
        lower[unknown], upper[unknown] = -math.inf, math.inf
        nearest = np.concatenate([self._nearest, lower])
        if len(nearest) >= self._most:
            nearest = np.partition(nearest, -self._most)[-self._most :]
            self.least = float(nearest[0])
        self._nearest = nearest
        return numbers, upper

    def _closeness(self, rows: VectorRows, numbers: Numbers) -> tuple[Reals, Reals]:
        """Return how close rows are, and by how much that may be wrong."""
        count = len(self._query)
        # No product of matrices, whose threads wait for each other where other processes compute too.
        products = np.einsum("ij,j->i", rows.matrix, self._query)[numbers].astype(np.float64)
        lengths = rows.lengths[numbers]
        small = 2 * count * (_TINY + math.ldexp(_LEAST, -self._power))
        errors = 2 * (count + 2) * _EPSILON * lengths * self._length + small
        match self._metric:
            case Metric.DOT:
                return products, errors
            case Metric.COSINE:
                return products / lengths, errors / lengths + (count + 2) * _EPSILON * self._length
            case Metric.L2:  # the square of the distance is |a|² - 2ab + |b|², the last of which is the same for all
                squares = np.square(lengths)
                errors = np.ldexp(errors, self._power) + (count + 2) * _EPSILON * squares
                # The exact comparison rounds too, so that it may find rows equal that are not.
                errors += (count + 4) * _EPSILON_64 * (squares + self._square)
                return np.ldexp(products, self._power) - squares / 2, errors
            case _ as never:
                assert_never(never)


def _single(numbers: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Return numbers in single precision."""
    if numbers.dtype != np.float16:
        return numbers.astype(np.float32, copy=False)
    # A table gives those of half precision in half the time that their conversion takes.
    found = np.empty(len(numbers), np.float32)
    return np.take(_halves(), numbers.view(np.uint16), out=found, mode="clip")


@cache
def _halves() -> npt.NDArray[np.float32]:
    """Return all numbers of half precision, at the places of their bits."""
    return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


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
    dataset: LanceDataset, fragments: Sequence[LanceFragment], columns: Mapping[str, str]
) -> dict[int, FreshRows[CodedColumns]]:
    """Return the rows of fragments with their words, by the fragments' numbers.

    Left out are those that are searched for the first time, that have few rows, or many. `columns` has the column of
    words of each text column.
    """
    named = {}
    for each in fragments:
        if TEXTS_MIN <= each.physical_rows <= ROWS_MAX:
            name = _name(dataset, each, *sorted(columns.items()))
            if _searched_before(name):
                named[name] = each

    def coded(rows: pa.Table) -> CodedColumns:
        return CodedColumns({column: CodedTexts(rows[name].combine_chunks()) for column, name in columns.items()})

    return _cached(named, dataset, list(columns.values()), coded)


def cached_vectors(
    dataset: LanceDataset, fragments: Sequence[LanceFragment], dimension: int, bytes_max: int
) -> dict[int, FreshRows[VectorRows]]:
    """Return the rows of fragments with their vectors, by the fragments' numbers.

    Left out are those that are searched for the first time, or have many rows. All are left out where they take more
    than `bytes_max` together: they would drive each other out in each search.
    """
    row_bytes = dimension * np.dtype(np.float32).itemsize + _ROW_BYTES
    if sum(each.physical_rows for each in fragments) * row_bytes > bytes_max:
        return {}
    few = {_name(dataset, each, VECTOR): each for each in fragments if each.physical_rows <= ROWS_MAX}
    named = {name: each for name, each in few.items() if _searched_before(name)}
    return _cached(named, dataset, [VECTOR], lambda rows: VectorRows(rows[VECTOR].combine_chunks()))


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
        begin, end = _places(addresses, number)
        found[number] = rows.living(addresses[begin:end])
    return found


def _searched_before(name: _Name) -> bool:
    """Return whether rows were searched before, and take note that they are: what is searched once needs no cache."""
    if _CACHE.get(name) is not None or _SEEN.get(name) is not None:
        return True
    _SEEN.put(name, True)
    return False


def _name(dataset: LanceDataset, fragment: LanceFragment, *content: object) -> _Name:
    # The name of a file of data is never given again.
    return (dataset.uri, *(file.path for file in fragment.data_files()), *content)


def _cached(
    named: Mapping[_Name, LanceFragment],
    dataset: LanceDataset,
    columns: Sequence[str],
    content_of: Callable[[pa.Table], C],
) -> dict[int, FreshRows[C]]:
    """Return the rows of fragments by the fragments' numbers; those that are not cached are read."""
    found: dict[int, FreshRows[C]] = {}
    missing: list[LanceFragment] = []
    names = {each.fragment_id: name for name, each in named.items()}
    for name, each in named.items():
        if (rows := _CACHE.get(name)) is None:
            missing.append(each)
        else:
            found[each.fragment_id] = cast(FreshRows[C], rows)
    for some in _read_together(missing):
        # One scan of many small fragments takes a fraction of the time of as many scans.
        scanner = dataset.scanner([KEY, *columns], fragments=some, with_row_address=True, scan_in_order=True)
        read = scanner.to_table()
        addresses = read[ADDRESS].to_numpy().astype(np.uint64)
        for each in some:
            begin, end = _places(addresses, each.fragment_id)
            part = read.slice(begin, end - begin)
            made = FreshRows(addresses[begin:end].copy(), part[KEY].to_pylist(), content_of(part))
            found[each.fragment_id] = made
            _CACHE.put(names[each.fragment_id], cast(FreshRows[_RowContent], made))
    return found


def _read_together(fragments: Iterable[LanceFragment]) -> Iterator[list[LanceFragment]]:
    """Yield fragments in groups of at most ROWS_MAX rows, or of one."""
    group: list[LanceFragment] = []
    rows = 0
    for each in sorted(fragments, key=lambda fragment: fragment.fragment_id):
        if group and rows + each.physical_rows > ROWS_MAX:
            yield group
            group, rows = [], 0
        group.append(each)
        rows += each.physical_rows
    if group:
        yield group


def _places(addresses: Addresses, fragment: int) -> tuple[int, int]:
    """Return where those of one fragment begin and end among sorted addresses."""
    bounds = np.array([fragment, fragment + 1], np.uint64) << np.uint64(32)
    begin, end = np.searchsorted(addresses, bounds).tolist()
    return begin, end
