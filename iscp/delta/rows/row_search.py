"""Finds rows of a table in its data files, without Spark: column by column, until it is certain which ones they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from iscp.delta.log.live_files import NotReadableHere
from iscp.delta.log.readable_files import Places
from iscp.delta.log.table_opening import open_delta
from iscp.delta.rows.data_file import ROWS_BYTES_MAX, CachedRows, DataFile, RowGroup, partition_column
from iscp.delta.rows.row_keys import may_hold
from iscp.ports.source import ChangesUnavailableError
from iscp.storage.bounded_parquet import Allowance
from iscp.storage.delta_errors import delta_faults
from iscp.system.late_imports import pc

# --- values as numbers ------------------------------------------------------------------------------------------------
# Rows are compared on Arrow by numbers that stand for their values: null equals null, and zeros and NaN are one each.

Codes = np.ndarray[Any, np.dtype[np.int64]]


def codes_of(values: pa.ChunkedArray, distinct: pa.Array) -> Codes:
    """Return the place of each value in `distinct`; -1: it is not there."""
    found = pc.index_in(values, value_set=distinct, skip_nulls=False)
    codes: Codes = pc.fill_null(found, -1).to_numpy().astype(np.int64)
    return codes


def comparable_values(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values such that what Spark takes for equal is equal here; lists as texts that are equal where they
    are.
    """
    if pa.types.is_list(values.type):
        return pa.chunked_array(list(map(_as_texts, values.chunks)), pa.string())
    if not pa.types.is_floating(values.type):
        return values
    plain = pc.add(values, pa.scalar(0.0, values.type))
    return pc.if_else(pc.is_nan(plain), pa.scalar(float("nan"), values.type), plain)


def _as_texts(lists: pa.ListArray) -> pa.Array:
    """Return each list as a text: its elements one after another, each behind its length, and `-` for a null."""
    elements = lists.flatten().cast(pa.string())
    spelled = pc.binary_join_element_wise(pc.binary_length(elements).cast(pa.string()), elements, ":")
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    ends = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, pc.fill_null(spelled, "-")), "")
    return pc.if_else(lists.is_valid(), joined, pa.scalar(None, pa.string()))


def row_codes(rows: pa.Table, others: pa.Table) -> tuple[Codes, Codes]:
    """Return for each row a number that all rows equal to it have, and no other.

    `others` has the same columns, in their order.
    """
    every = pa.concat_tables([rows, others.rename_columns(rows.schema.names).cast(rows.schema)])
    known = np.zeros(len(every), np.int64)
    for column in every.columns:
        values = comparable_values(column)
        distinct = pc.unique(values)
        _, known = np.unique(known * len(distinct) + codes_of(values, distinct), return_inverse=True)
    return known[: len(rows)], known[len(rows) :]


def ordinals(codes: Codes) -> Codes:
    """Return for each row how many equal ones lie before it."""
    order = np.argsort(codes, kind="stable")
    found = np.empty(len(codes), np.int64)
    found[order] = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order], side="left")
    return found


def beyond(codes: Codes, others: Codes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which rows are more than there are equal ones among the others."""
    size = int(max(codes.max(initial=-1), others.max(initial=-1))) + 1
    found: np.ndarray[Any, np.dtype[np.bool_]] = ordinals(codes) >= np.bincount(others, minlength=size)[codes]
    return found


def are_equal(rows: pa.Table, others: pa.Table) -> bool:
    """Return whether both have the same rows, each as often; `others` has the same columns."""
    mine, theirs = row_codes(rows, others.select(rows.schema.names))
    return len(mine) == len(theirs) and not beyond(mine, theirs).any()


# --- the search -------------------------------------------------------------------------------------------------------
# A column is compared with the values that it has in the rows that are wanted. As soon as there are as many rows left
# as are wanted, of each combination of values, they are the wanted ones, as the table has these: the other columns need
# not be read. So one column of whole numbers is mostly all that is decoded; and none of a file that by its statistics
# has none of the values.

SEARCHED_BYTES_MAX = 8 * 1024**3
"""Bytes of a table's files in which rows are searched here; larger tables are left to Spark."""

CANDIDATES_MAX = 10_000_000
"""Rows that may be the wanted ones, by the columns compared so far; more are left to Spark."""

CLOSE_VALUES_MAX = 1_000_000
"""The span of whole numbers that are searched by a table with a place for each; Arrow searches others by hashes."""

SEARCH_THREADS = 2
"""Files that are read at a time; more queue."""

LACKING = "the table lacks rows that it has to lose"


@dataclass
class _Candidates:
    """Rows of one file; `codes` are the combinations of values that they have. None: all of its rows."""

    file: DataFile
    places: Places | None = None
    codes: Codes = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def found(self) -> Places:
        return np.empty(0, np.int64) if self.places is None else self.places

    def narrow(self, column: pa.Schema, step: _Step) -> None:
        """Leave the rows whose values, with those of the columns before, are one of the step's combinations."""
        if self.places is None and not step.may_be_in(self.file):
            self.places = _none()
        if self.places is not None and not len(self.places):
            return
        begin, found, codes = 0, [_none()], [_none()]
        for rows in self.file.groups(column, self.places):
            known = None if self.places is None else self.codes[begin : begin + len(rows)]
            there, those = step.match(known, rows.column(0))
            found.append(there + begin)
            codes.append(those)
            begin += len(rows)
        there, self.codes = np.concatenate(found), np.concatenate(codes)
        if self.places is None and len(self.file.gone):
            left = np.isin(there, self.file.gone, invert=True)
            there, self.codes = there[left], self.codes[left]
        self.places = there if self.places is None else self.places[there]


def find_rows(files: Sequence[DataFile], wanted: pa.Table, counts: Codes) -> list[Places]:
    """Return for each file the places of `wanted` rows, each of which differs from the others and is to be found as
    often as `counts`.

    Raises ChangesUnavailableError where there are fewer, NotReadableHere where it takes Spark.
    """
    found = [_Candidates(file) for file in files]
    if not len(wanted):
        return [each.found for each in found]
    for known, count in _compare(found, wanted):
        need = np.bincount(known, weights=counts, minlength=count).astype(np.int64)
        have = np.bincount(np.concatenate([_none(), *[each.codes for each in found]]), minlength=count)
        if np.any(have < need):
            raise ChangesUnavailableError(LACKING)
        if np.array_equal(have, need):
            return [each.found for each in found]
    return _first_of_each(found, need)


def find_keys(
    files: Sequence[DataFile], keys: pa.Table, schema: pa.Schema, rows_max: int = CANDIDATES_MAX
) -> tuple[list[Places], pa.Table]:
    """Return for each file the places of all rows that have one of these keys, and these rows, in the order of their
    places.

    Columns besides the keys are read in large files only where there is such a row. Raises NotReadableHere, also where
    a file has more than `rows_max` of these rows.
    """
    steps = list(_steps(keys))
    with ThreadPoolExecutor(SEARCH_THREADS, "iscp-row-search") as pool:
        # To hand over what is cached already takes longer than to search it.
        each = map if all(file.is_small for file in files) else pool.map
        room = Allowance(ROWS_BYTES_MAX)
        found = list(each(lambda file: _with_keys(file, steps, schema, rows_max, room), files if len(keys) else ()))
    rows = pa.concat_tables([schema.empty_table(), *(part for _, parts in found for part in parts)])
    return [places for places, _ in found] or [_none() for _ in files], rows


def scan_rows(files: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield these columns of all rows, one row group after another. Raises NotReadableHere, also where one takes more
    memory than rows of a file may.
    """
    for file in files:
        with file.open_cached(schema) as groups:
            for group in groups:
                gone = file.gone[slice(*np.searchsorted(file.gone, [group.begin, group.end]))] - group.begin
                left = np.delete(np.arange(group.end - group.begin), gone) if len(gone) else None
                yield group.read(schema, left)


def _with_keys(
    file: DataFile, steps: Sequence[_Step], schema: pa.Schema, rows_max: int, room: Allowance
) -> tuple[Places, list[pa.Table]]:
    places, rows, count = [_none()], [], 0
    if not all(step.may_be_in(file) for step in steps):
        return _none(), []
    with file.open_cached(schema) as groups:
        for group in groups:
            at, keys = _matching(group, steps, schema)
            gone = file.gone[slice(*np.searchsorted(file.gone, [group.begin, group.end]))] - group.begin
            if len(gone):
                left = np.flatnonzero(np.isin(at, gone, invert=True))
                at, keys = at[left], keys.take(pa.array(left))
            count += len(at)
            if count > rows_max:
                raise NotReadableHere
            if len(at):
                places.append(at + group.begin)
                others = pa.schema([each for each in schema if each.name not in keys.schema.names])
                rest = group.read(others, at, room)
                columns = [(keys if each.name in keys.schema.names else rest)[each.name] for each in schema]
                rows.append(pa.table(columns, schema=schema))
    return np.concatenate(places), rows


def _matching(group: RowGroup | CachedRows, steps: Sequence[_Step], schema: pa.Schema) -> tuple[Places, pa.Table]:
    """Return the places of the group's rows that have one of the last step's combinations, and their key columns."""
    at: Places | None = None
    known: Codes | None = None
    keys: dict[str, pa.ChunkedArray] = {}
    for step in steps:
        column = group.read(pa.schema([schema.field(step.name)]), at).column(0)
        there, known = step.match(known, column)
        at = there if at is None else at[there]
        taken = pa.array(there)
        keys = {name: each.take(taken) for name, each in (keys | {step.name: column}).items()}
        if not len(at):
            break
    return (_none() if at is None else at), pa.table(keys)


@dataclass(frozen=True, slots=True)
class _Step:
    """A column of wanted rows: its values in them, and the `combinations` of these with what was known before; `known`:
    of each wanted row which combination it has. `ascending`: the distinct values, where statistics bound such. `codes`:
    of whole numbers that lie close together the place of each in `distinct`, from the least one on; -1: it is none, as
    the last always is.
    """

    name: str
    distinct: pa.Array
    combinations: Codes
    known: Codes
    ascending: Sequence[Any] | None
    codes: Codes | None

    def may_be_in(self, file: DataFile) -> bool:
        """Return whether one of the values may be in the file, by its partition or its statistics."""
        if self.name.lower() in file.partition:
            own = partition_column(file.partition[self.name.lower()], self.distinct.type, 1)
            return len(self._places_in_distinct(pa.chunked_array([own]))[0]) > 0
        return self.ascending is None or may_hold(file.add, self.name, self.ascending)

    def match(self, known: Codes | None, values: pa.ChunkedArray) -> tuple[Places, Codes]:
        """Return the places of the rows that have one of the step's combinations, and which.

        `values` are those of the rows in this column, `known` the combinations of the columns before it (None: it is
        the first).
        """
        there, combined = self._places_in_distinct(values)
        if known is not None:
            combined += known[there] * len(self.distinct)
        at = np.minimum(np.searchsorted(self.combinations, combined), len(self.combinations) - 1)
        same = self.combinations[at] == combined
        return there[same], at[same]

    def _places_in_distinct(self, values: pa.ChunkedArray) -> tuple[Places, Codes]:
        """Return the places of the values that are wanted, and the places of these in `distinct`."""
        if self.codes is not None and self.ascending and not values.null_count:
            # Differences below zero are large ones without a sign, so one comparison with the last place does.
            offsets = (values.to_numpy().astype(np.int64, copy=False) - self.ascending[0]).view(np.uint64)
            offsets = np.minimum(offsets, np.uint64(len(self.codes) - 1))
            places = np.flatnonzero((self.codes >= 0)[offsets])
            return places, self.codes[offsets[places]]
        codes = pc.index_in(comparable_values(values), value_set=self.distinct, skip_nulls=False)
        there = np.flatnonzero(pc.is_valid(codes).to_numpy())  # few of all rows
        return there, codes.take(pa.array(there)).to_numpy().astype(np.int64)


def _steps(wanted: pa.Table) -> Iterator[_Step]:
    known = np.zeros(len(wanted), np.int64)
    for name in _columns(wanted):
        values = comparable_values(wanted[name])
        distinct = pc.unique(values)
        combinations, known = np.unique(known * len(distinct) + codes_of(values, distinct), return_inverse=True)
        ascending = None if pa.types.is_list(wanted[name].type) else _ascending(distinct)
        yield _Step(name, distinct, combinations, known, ascending, _codes_by_value(distinct, ascending))


def _ascending(values: pa.Array) -> Sequence[Any] | None:
    kind = values.type
    if values.null_count or not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        return None
    return sorted(values.to_pylist())


def _codes_by_value(distinct: pa.Array, ascending: Sequence[Any] | None) -> Codes | None:
    """Return the place of each whole number in `distinct`, from the least one on, or None if they lie far apart.

    To look a number up in that takes a tenth of the time that Arrow's table of hashes does.
    """
    if not ascending or not pa.types.is_integer(distinct.type) or ascending[-1] - ascending[0] >= CLOSE_VALUES_MAX:
        return None
    codes = np.full(ascending[-1] - ascending[0] + 2, -1, np.int64)  # the last is that of all other numbers
    codes[distinct.to_numpy().astype(np.int64) - ascending[0]] = np.arange(len(distinct))
    return codes


def _compare(found: Sequence[_Candidates], wanted: pa.Table) -> Iterator[tuple[Codes, int]]:
    """Narrow what is found by one column after another; yield each time which combination a wanted row has, and of how
    many.
    """
    for step in _steps(wanted):
        column = pa.schema([wanted.schema.field(step.name)])
        with ThreadPoolExecutor(SEARCH_THREADS, "iscp-row-search") as pool:
            for narrowed in [pool.submit(each.narrow, column, step) for each in found]:
                narrowed.result()
        if sum(len(each.found) for each in found) > CANDIDATES_MAX:
            raise NotReadableHere
        yield step.known, len(step.combinations)


def _columns(wanted: pa.Table) -> list[str]:
    """Return the columns, those first that distinguish most rows; then lists, which are made texts to be compared, and
    doubles last, whose last digits are not certain.
    """

    def rank(name: str) -> tuple[bool, bool, int]:
        kind, values = wanted[name].type, comparable_values(wanted[name])
        different = pc.count_distinct(values, mode="all").as_py()
        return pa.types.is_floating(kind), pa.types.is_list(kind), -different

    return sorted(wanted.schema.names, key=rank)


def _first_of_each(found: Sequence[_Candidates], need: Codes) -> list[Places]:
    """Choose as many rows as are wanted, whichever they are, among those that are equal in all columns."""
    chosen = []
    left = need.copy()
    for each in found:
        chosen.append(each.found[ordinals(each.codes) < left[each.codes]])
        left = left - np.minimum(np.bincount(each.codes, minlength=len(left)), left)
    return chosen


def _none() -> Places:
    return np.empty(0, np.int64)


# --- stored groups ----------------------------------------------------------------------------------------------------


def read_groups(uri: str, version: int, keys: pa.Table) -> pa.Table:
    """Return the stored groups with these keys, and others, by delta-rs, where the groups' files are not searched here.

    Raises ChangesUnavailableError if a file is gone.
    """
    with delta_faults(f"read {uri}"):
        # By delta-rs itself: Arrow takes neither rows that are marked as deleted, nor a filter of texts that it wrote.
        batches = pa.RecordBatchReader.from_stream(open_delta(uri, version).scan())
        try:
            found = [_with_first(batch, pc.unique(keys["k0"])) for batch in batches]
        except pa.ArrowInvalid as error:  # whatever delta-rs has met on its way through the files
            raise ChangesUnavailableError(f"what is kept of the groups cannot be read: {error}") from error
        return pa.concat_tables([_plain(batches.schema).empty_table(), *found])


def _with_first(batch: pa.RecordBatch, firsts: pa.Array) -> pa.Table:
    """Return the rows whose first key is one of these."""
    rows = pa.Table.from_batches([batch]).cast(_plain(batch.schema))
    return rows.filter(pc.is_in(rows["k0"], value_set=firsts.cast(rows.schema.field("k0").type)))


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each.with_type(pa.string()) if each.type == pa.string_view() else each for each in schema])
