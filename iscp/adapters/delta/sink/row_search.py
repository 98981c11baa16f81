"""Finds rows of a table in its data files, without Spark: column by column, until it is certain which ones they are.

A column is compared with the values that it has in the rows that are wanted. As soon as there are as many rows left as
are wanted, of each combination of values, they are the wanted ones, as the table holds these: the other columns need
not be read. So one column of whole numbers is mostly all that is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.rows.deletion_vectors import Places, read_vector
from iscp.adapters.delta.rows.value_codes import Codes, codes_of, comparable_values, ordinals
from iscp.adapters.delta.storage.table_files import files_of
from iscp.ports.source import ChangesUnavailableError

CANDIDATES_MAX = 10_000_000
"""Rows that may be the wanted ones, by the columns compared so far; more are left to Spark."""

SEARCH_THREADS = 2
"""Files that are read at a time; more queue."""

LACKING = "the table lacks rows that it has to lose"


@dataclass
class DataFile:
    """One file of the table at `uri`, by its `add` action; `gone`: its rows that a deletion vector takes out."""

    uri: str
    add: Mapping[str, Any]
    gone: Places = field(init=False)

    def __post_init__(self) -> None:
        vector = self.add.get("deletionVector")
        self.gone = read_vector(self.uri, vector) if vector else np.empty(0, np.int64)

    def read(self, schema: pa.Schema, places: Places | None = None) -> pa.Table:
        """These columns of all rows, or of those in `places`, in their order. Raises as `groups`."""
        return pa.concat_tables([schema.empty_table(), *self.groups(schema, places)])

    def groups(self, schema: pa.Schema, places: Places | None = None) -> Iterator[pa.Table]:
        """The same, one row group after another, as no more than that is decoded at a time.

        A column that is younger than the file is null. Raises NotReadableHere where the file is not there.
        """
        try:
            source = files_of(self.uri).open_input_file(unquote(self.add["path"]))
        except FileNotFoundError as error:
            raise NotReadableHere from error  # Spark says what it misses
        with source, pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as parquet:
            held = {name.lower(): name for name in parquet.schema_arrow.names}
            names = [held[name.lower()] for name in schema.names if name.lower() in held]
            begin = 0
            for number in range(parquet.num_row_groups):
                end = begin + parquet.metadata.row_group(number).num_rows
                wanted = None if places is None else places[slice(*np.searchsorted(places, [begin, end]))] - begin
                if wanted is None or len(wanted):
                    rows, count = parquet.read_row_group(number, names), end - begin
                    if wanted is not None:
                        rows, count = rows.take(pa.array(wanted)), len(wanted)
                    columns = [
                        rows[held[each.name.lower()]].cast(each.type)
                        if each.name.lower() in held
                        else pa.nulls(count, each.type)
                        for each in schema
                    ]
                    yield pa.table(columns, schema=schema)
                begin = end


@dataclass
class _Candidates:
    """Rows of one file; `codes` are the combinations of values that they have. None: all of its rows."""

    file: DataFile
    places: Places | None = None
    codes: Codes = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def found(self) -> Places:
        return np.empty(0, np.int64) if self.places is None else self.places

    def narrow(self, column: pa.Schema, distinct: pa.Array, combinations: Codes) -> None:
        """Leave the rows whose values, with those of the columns before, are one of these combinations."""
        if self.places is not None and not len(self.places):
            return
        groups = self.file.groups(column, self.places)
        codes = np.concatenate([_none(), *(codes_of(comparable_values(rows.column(0)), distinct) for rows in groups)])
        there = np.flatnonzero(codes >= 0)
        if self.places is None:
            there = there[np.isin(there, self.file.gone, invert=True)] if len(self.file.gone) else there
            places, combined = there, codes[there]
        else:
            places, combined = self.places[there], self.codes[there] * len(distinct) + codes[there]
        at = np.minimum(np.searchsorted(combinations, combined), len(combinations) - 1)
        same = combinations[at] == combined
        self.places, self.codes = places[same], at[same]


def find_rows(files: Sequence[DataFile], wanted: pa.Table, times: Codes) -> list[Places]:
    """Of each file the places of `wanted` rows, each of which is another one, and is to be found as often as `times`.

    Raises ChangesUnavailableError where there are fewer, NotReadableHere where it takes Spark.
    """
    found = [_Candidates(file) for file in files]
    if not len(wanted):
        return [each.found for each in found]
    for known, count in _compare(found, wanted):
        need = np.bincount(known, weights=times, minlength=count).astype(np.int64)
        have = np.bincount(np.concatenate([_none(), *[each.codes for each in found]]), minlength=count)
        if np.any(have < need):
            raise ChangesUnavailableError(LACKING)
        if np.array_equal(have, need):
            return [each.found for each in found]
    return _first_of_each(found, need)


def find_keys(files: Sequence[DataFile], keys: pa.Table) -> list[Places]:
    """Of each file the places of all rows that have one of these keys. Raises NotReadableHere."""
    found = [_Candidates(file) for file in files]
    if len(keys):
        for _ in _compare(found, keys):
            pass
    return [each.found for each in found]


def _compare(found: Sequence[_Candidates], wanted: pa.Table) -> Iterator[tuple[Codes, int]]:
    """Narrow what is found by one column after another: each time which combination a wanted row has, of how many."""
    known = np.zeros(len(wanted), np.int64)
    for name in _columns(wanted):
        values = comparable_values(wanted[name])
        distinct = pc.unique(values)
        combinations, known = np.unique(known * len(distinct) + codes_of(values, distinct), return_inverse=True)
        column = pa.schema([wanted.schema.field(name)])
        with ThreadPoolExecutor(SEARCH_THREADS, "iscp-row-search") as pool:
            for narrowed in [pool.submit(each.narrow, column, distinct, combinations) for each in found]:
                narrowed.result()
        if sum(len(each.found) for each in found) > CANDIDATES_MAX:
            raise NotReadableHere
        yield known, len(combinations)


def _columns(wanted: pa.Table) -> list[str]:
    """Those first that distinguish most rows; doubles last, whose last digits are not certain."""

    def rank(name: str) -> tuple[bool, int]:
        column = wanted[name]
        return pa.types.is_floating(column.type), -pc.count_distinct(column, mode="all").as_py()

    return sorted(wanted.schema.names, key=rank)


def _first_of_each(found: Sequence[_Candidates], need: Codes) -> list[Places]:
    """Of rows that are equal in all columns as many as are wanted, whichever they are."""
    chosen = []
    left = need.copy()
    for each in found:
        chosen.append(each.found[ordinals(each.codes) < left[each.codes]])
        left = left - np.minimum(np.bincount(each.codes, minlength=len(left)), left)
    return chosen


def _none() -> Places:
    return np.empty(0, np.int64)
