"""Takes few rows out of a large table and puts others in, without Spark: by deletion vectors, in one commit.

No file is rewritten for a row that goes, so that the commit costs what changes; finding the rows costs a pass over
one column or some. Commits exactly the next version or nothing, as all writers of targets do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from iscp.adapters.delta.log.actions import is_count, statistics_of
from iscp.adapters.delta.log.commits import commit_file
from iscp.adapters.delta.log.deletion_vectors import Places
from iscp.adapters.delta.log.live_files import LoadState, NotReadableHere, StateReader, TableState, load_plain_state
from iscp.adapters.delta.rows.data_file import DataFile, open_files
from iscp.adapters.delta.rows.net_changes import arrow_schema, fits_arrow
from iscp.adapters.delta.rows.row_cache import ROW_CACHE, RowCache
from iscp.adapters.delta.rows.row_search import CANDIDATES_MAX, SEARCHED_BYTES_MAX, find_keys, find_rows
from iscp.adapters.delta.rows.value_codes import Codes, beyond, row_codes
from iscp.adapters.delta.sink.row_commit import RowChange, RowCommit, rows_of
from iscp.adapters.delta.spark.text_bytes import are_utf8
from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.delta_errors import delta_faults, direct_work
from iscp.adapters.system.late_imports import T
from iscp.core.sql.sql_names import WEIGHT
from iscp.core.values.errors import Conflict
from iscp.ports.sink import CommitTag

VECTORS = {"delta.enableDeletionVectors": "true"}
"""The property of a table whose rows are taken out by deletion vectors."""

_CDF = "delta.enableChangeDataFeed"
_FEATURES = frozenset({"appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz"})


@dataclass(frozen=True, slots=True)
class _Found:
    """Says where the rows with one of these keys are, and has these rows."""

    keys: pa.Table
    places: Sequence[Places]
    rows: pa.Table


@dataclass(slots=True)
class _Table:
    """The target as its log has it: its columns as Arrow has them, its files, and what was searched in it last."""

    state: TableState
    schema: pa.Schema
    files: Sequence[DataFile]
    _found: _Found | None = None

    def rows(self, places: Sequence[Places]) -> pa.Table:
        """Return the rows in these places of the files, in their order."""
        found = [file.read(self.schema, at) for file, at in zip(self.files, places, strict=True) if len(at)]
        return pa.concat_tables([self.schema.empty_table(), *found])

    def search(self, keys: pa.Table) -> _Found:
        """Find the rows with one of these `keys` (values of some columns). Raises NotReadableHere."""
        keys = self._fitted(keys, keys.schema.names)
        if self._found is None or not self._found.keys.equals(keys):
            self._found = _Found(keys, *find_keys(self.files, keys, self.schema))
        return self._found

    def all_rows(self, rows_max: int) -> _Found:
        """Return all rows. Raises NotReadableHere if they are more than `rows_max`."""
        if sum(rows_of(file) - len(file.gone) for file in self.files) > rows_max:
            raise NotReadableHere
        found = [_left_in(file, self.schema) for file in self.files]
        rows = pa.concat_tables([self.schema.empty_table(), *(part for _, part in found)])
        return _Found(rows, [places for places, _ in found], rows)

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return `rows` with the table's columns and types.

        Raises NotReadableHere if they have others, or texts are no UTF-8.
        """
        return self._fitted(rows, self.schema.names)

    def _fitted(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        try:
            found = rows.select(names).cast(pa.schema([self.schema.field(name) for name in names]))
        except (pa.ArrowException, KeyError) as error:
            raise NotReadableHere from error
        if not are_utf8(found):
            raise NotReadableHere
        return found


class BagWriter:
    """Writes one target.

    The log's state is cached from commit to commit, and what was read of the table until the next commit.
    """

    def __init__(self, uri: str, cache: RowCache = ROW_CACHE, load_state: LoadState = load_plain_state) -> None:
        self._uri = uri
        self._cache = cache
        self._reader = StateReader(uri, load_state)
        self._opened: _Table | None = None

    def marks_rows(self, version: int) -> bool:
        """Return whether the table, at its version, is one whose rows deletion vectors take out.

        Raises StorageError.
        """
        with delta_faults(f"open {self._uri}"), suppress(NotReadableHere):
            return VECTORS.items() <= self._reader.read_state(version).configuration.items()
        return False

    def rows_with(self, keys: pa.Table, version: int) -> pa.Table | None:
        """Return the table's rows, at its version, that have one of these `keys` (values of some of its columns).

        Return None as `change` does. Raises StorageError.
        """
        with suppress(NotReadableHere), direct_work(), delta_faults(f"search rows of {self._uri}"):
            return self._open(version).search(keys).rows
        return None

    def few_rows(self, version: int, rows_max: int) -> pa.Table | None:
        """Return all rows of the table, at its version. Raises StorageError.

        Return None if they are more than `rows_max`, and as `change` does.
        """
        with suppress(NotReadableHere), direct_work(), delta_faults(f"read {self._uri}"):
            return self._open(version).all_rows(rows_max).rows
        return None

    def change(self, rows: pa.Table, tag: CommitTag) -> int | None:
        """Commit as the version after `tag.base_version`; `rows`: the table's columns, each row once, and WEIGHT.

        Return how many rows went or came, or None if only Spark can do it. Raises Conflict, ChangesUnavailableError if
        rows that go are not there, StorageError.
        """
        return self._commit(tag, lambda table: _change(table, rows))

    def replace_keys(self, rows: pa.Table, keys: pa.Table, tag: CommitTag) -> int | None:
        """Replace all rows that have one of these `keys` (values of some of the columns) by `rows`.

        Return and raise as `change` does.
        """
        return self._commit(tag, lambda table: _replacement(table, rows, table.search(keys)))

    def replace_all(self, rows: pa.Table, tag: CommitTag, rows_max: int) -> int | None:
        """Replace all rows by `rows`. Return and raise as `change` does.

        Return None also if there are more rows than `rows_max`.
        """
        return self._commit(tag, lambda table: _replacement(table, rows, table.all_rows(rows_max)))

    def _open(self, version: int) -> _Table:
        """Open the table. Raises NotReadableHere if it is not one that can be changed here."""
        state = self._reader.read_state(version)
        if self._opened is None or self._opened.state is not state:
            self._opened = _open(self._uri, state, self._cache)
        return self._opened

    def _commit(self, tag: CommitTag, decide: Callable[[_Table], RowChange]) -> int | None:
        commit = None
        try:
            with direct_work(), delta_faults(f"change rows of {self._uri}"):
                table = self._open(tag.base_version)
                change = decide(table)
                with_cdf = table.state.configuration.get(_CDF, "false").lower() == "true"
                commit = RowCommit(self._uri, table.files, with_cdf)
                content = commit.write(change, tag)
        except NotReadableHere:
            return None
        except BaseException:
            if commit is not None:
                commit.discard()
            raise
        finally:
            self._opened = None
        with direct_work(), delta_faults(f"change rows of {self._uri}"):
            # Whatever it raises, the commit may be there: then the files belong to it.
            created = files.create(commit_file(self._uri, tag.base_version + 1), content)
        if not created:
            commit.discard()
            raise Conflict(f"{self._uri} is not at version {tag.base_version} any more")
        return change.rows


def _open(uri: str, state: TableState, cache: RowCache) -> _Table:
    """Open the table. Raises NotReadableHere if it is not one that can be changed here."""
    schema = T.StructType.fromJson(json.loads(state.metadata["schemaString"]))
    configuration = state.configuration
    fit = (
        VECTORS.items() <= configuration.items()
        and state.features <= _FEATURES
        and not any(name.startswith("delta.constraints.") for name in configuration)
        and configuration.get("delta.appendOnly", "false").lower() == "false"
        and not state.metadata.get("partitionColumns")
        and fits_arrow(schema, ())
        and sum(add.get("size") or 0 for add in state.adds.values()) <= SEARCHED_BYTES_MAX
        and all(is_count(statistics_of(add).get("numRecords")) for add in state.adds.values())
    )
    if not fit:
        raise NotReadableHere
    return _Table(state, arrow_schema(schema), open_files(uri, state.adds.values(), cache))


def _left_in(file: DataFile, schema: pa.Schema) -> tuple[Places, pa.Table]:
    """Return the places of the rows that the file still has, and these rows."""
    if (rows := rows_of(file)) > CANDIDATES_MAX:  # its statistics may say anything
        raise NotReadableHere
    places = np.setdiff1d(np.arange(rows), file.gone, assume_unique=True)
    with file.open_cached(schema) as groups:
        parts = [group.read(schema, places[slice(*np.searchsorted(places, [group.begin, group.end]))] - group.begin)
                 for group in groups]  # fmt: skip
    return places, pa.concat_tables([schema.empty_table(), *parts])


def _change(table: _Table, rows: pa.Table) -> RowChange:
    weights = rows[WEIGHT].to_numpy()
    fitted = table.fitted(rows)
    going, times = fitted.filter(pa.array(weights < 0)), -weights[weights < 0]
    places = find_rows(table.files, going, times)
    # The last digits of doubles are as they are in the table.
    exact = not any(pa.types.is_floating(each.type) for each in table.schema)
    return RowChange(places, _repeated(going, times) if exact else table.rows(places), _repeated(fitted, weights))


def _replacement(table: _Table, rows: pa.Table, found: _Found) -> RowChange:
    """Return the change that replaces what was found; rows that are to be there, and are, stay where they are."""
    wanted, target_rows = table.fitted(rows), found.rows
    mine, theirs = row_codes(target_rows, wanted)
    going = beyond(mine, theirs)
    parts = np.split(going, np.cumsum([len(at) for at in found.places])[:-1]) if found.places else []
    left = [at[part] for at, part in zip(found.places, parts, strict=True)]
    return RowChange(left, target_rows.filter(pa.array(going)), wanted.filter(pa.array(beyond(theirs, mine))))


def _repeated(rows: pa.Table, times: Codes) -> pa.Table:
    """Return each row as many times as `times` says; none if that is below 1."""
    return rows.take(pa.array(np.repeat(np.arange(len(rows)), np.maximum(times, 0))))
