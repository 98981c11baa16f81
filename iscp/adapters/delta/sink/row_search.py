"""Finds rows of a table in its data files, without Spark: column by column, until it is certain which ones they are.

A column is compared with the values that it has in the rows that are wanted. As soon as there are as many rows left as
are wanted, of each combination of values, they are the wanted ones, as the table holds these: the other columns need
not be read. So one column of whole numbers is mostly all that is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from iscp.adapters.delta.log.table_state import NotReadableHere
from iscp.adapters.delta.rows.deletion_vectors import Places, read_vector
from iscp.adapters.delta.rows.value_codes import codes_of, comparable_values
from iscp.adapters.delta.storage.table_files import files_of
from iscp.ports.source import ChangesUnavailableError

CANDIDATES_MAX = 10_000_000
"""Rows that may be the wanted ones, by the columns compared so far; more are left to Spark."""

SEARCH_THREADS = 2
"""Files that are read at a time; more queue."""

LACKING = "the table lacks rows that it has to lose"


@dataclass
class DataFile:
    """One file of the table at `uri`, by its `add` action. Texts of columns that it lacks are null."""

    uri: str
    add: Mapping[str, Any]
    gone: Places = field(init=False)

    def __post_init__(self) -> None:
        vector = self.add.get("deletionVector")
        self.gone = read_vector(self.uri, vector) if vector else np.empty(0, np.int64)

    def read(self, schema: pa.Schema, places: Places | None = None) -> pa.Table:
        """These columns of all rows, or of those in `places`. Raises NotReadableHere where the file is not there."""
        try:
            source = files_of(self.uri).open_input_file(unquote(self.add["path"]))
        except FileNotFoundError as error:
            raise NotReadableHere from error  # Spark says what it misses
        with source, pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as parquet:
            held = {name.lower(): name for name in parquet.schema_arrow.names}
            names = [held[name.lower()] for name in schema.names if name.lower() in held]
            rows = parquet.read(names)
            count = parquet.metadata.num_rows
        if places is not None:
            rows, count = rows.take(pa.array(places)), len(places)
        columns = [
            rows[held[each.name.lower()]].cast(each.type) if each.name.lower() in held else pa.nulls(count, each.type)
            for each in schema
        ]
        return pa.table(columns, schema=schema)


@dataclass
class _Candidates:
    """Rows of one file; `codes` are the combinations of values that they have. None: all of its rows."""

    file: DataFile
    places: Places | None = None
    codes: Places = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass
class RowSearch:
    """For `wanted` rows, each of another one and `times` as often."""

    wanted: pa.Table
    times: Places

    def find(self, files: Sequence[DataFile]) -> list[Places]:
        """For each file the rows that are wanted.

        Raises ChangesUnavailableError where there are fewer, NotReadableHere where it takes Spark.
        """
        found = [_Candidates(file) for file in files]
        known, count = np.zeros(len(self.wanted), np.int64), 1
        for name in self._columns():
            values = comparable_values(self.wanted[name])
            distinct = pc.unique(values)
            combined = known * len(distinct) + codes_of(values, distinct)
            combinations, known = np.unique(combined, return_inverse=True)
            count = len(combinations)
            self._narrow(found, pa.schema([self.wanted.schema.field(name)]), distinct, combinations)
            need = np.bincount(known, weights=self.times, minlength=count).astype(np.int64)
            have = np.bincount(np.concatenate([each.codes for each in found]), minlength=count)
            if np.any(have < need):
                raise ChangesUnavailableError(LACKING)
            if np.array_equal(have, need):
                return [_places(each) for each in found]
        return _first_of_each(found, need)

    def _columns(self) -> list[str]:
        """Those first that distinguish most rows; doubles last, whose last digits are not certain."""

        def rank(name: str) -> tuple[bool, bool, int]:
            column = self.wanted[name]
            return (
                pa.types.is_floating(column.type),
                not pa.types.is_primitive(column.type) and pc.count_distinct(column).as_py() * 2 < len(column),
                -pc.count_distinct(column, mode="all").as_py(),
            )

        return sorted(self.wanted.schema.names, key=rank)

    def _narrow(
        self, found: Sequence[_Candidates], column: pa.Schema, distinct: pa.Array, combinations: Places
    ) -> None:
        def narrow(each: _Candidates) -> None:
            if each.places is not None and not len(each.places):
                return
            values = each.file.read(column, each.places).column(0)
            codes = codes_of(comparable_values(values), distinct)
            there = np.flatnonzero(codes >= 0)
            if each.places is None:
                there = there[np.isin(there, each.file.gone, invert=True)] if len(each.file.gone) else there
                places, combined = there, codes[there]
            else:
                places, combined = each.places[there], each.codes[there] * len(distinct) + codes[there]
            at = np.minimum(np.searchsorted(combinations, combined), len(combinations) - 1)
            same = combinations[at] == combined
            each.places, each.codes = places[same], at[same]

        with ThreadPoolExecutor(SEARCH_THREADS, "iscp-row-search") as pool:
            list(pool.map(narrow, found))
        if sum(len(_places(each)) for each in found) > CANDIDATES_MAX:
            raise NotReadableHere


def _places(each: _Candidates) -> Places:
    return np.empty(0, np.int64) if each.places is None else each.places


def _first_of_each(found: Sequence[_Candidates], need: Places) -> list[Places]:
    """Of rows that are equal in all columns as many as are wanted, whichever they are."""
    chosen = []
    left = need.copy()
    for each in found:
        order = np.argsort(each.codes, kind="stable")
        codes = each.codes[order]
        begins = np.searchsorted(codes, codes, side="left")
        taken = order[np.arange(len(codes)) - begins < left[codes]]
        left = left - np.minimum(np.bincount(each.codes, minlength=len(left)), left)
        chosen.append(np.sort(_places(each)[taken]))
    return chosen
