"""One commit of an index: rows that go, rows that come, and the head, at exactly the version that was read. Beside it
lie the search for the rows that go, and the syncing of files, without which a commit would not outlive a power loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from lance import LanceDataset, LanceOperation
from lance.fragment import write_fragments

from iscp.index.lance.index_columns import (
    FAULT,
    HEAD,
    HEAD_KEY,
    KEY,
    ROW_HASH,
    TEXT_HASH,
    VECTOR,
    FieldTotals,
    IndexHead,
    words_columns,
)
from iscp.index.lance.lance_access import lance_faults, require_version
from iscp.index.lance.word_counts import PlacedHead, WordCounts, cache_counts, cache_head, counts_name, write_counts
from iscp.ports.engine import count_work
from iscp.storage.dataset_trial import current_trial
from iscp.storage.delta_errors import storage_faults
from iscp.storage.locations import local_path
from iscp.storage.s3_settings import table_options
from iscp.storage.table_files import sync

if TYPE_CHECKING:
    from lance import FragmentMetadata

    from iscp.ports.system import Failpoints


# --- rows by their keys -----------------------------------------------------------------------------------------------
# Rows of a dataset are found by their keys, with what a commit needs of the rows that go.

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


# --- durable files ----------------------------------------------------------------------------------------------------

_DATA, _DELETIONS, _TRANSACTIONS, _VERSIONS, _INDICES = "data", "_deletions", "_transactions", "_versions", "_indices"
_OWN = "_iscp"
_VERSION_MAX = 2**64 - 1

SYNCS_AT_ONCE = 4
"""Files of all indexes of a process that are synced at the same time; further ones wait for their turn."""

_SYNCS = ThreadPoolExecutor(SYNCS_AT_ONCE, "iscp-index-sync")


class DurableFiles:
    """Syncs the files of the dataset at a place, as `place` returns it; syncs nothing where it is not local.

    Lance syncs nothing itself, so this class makes what is committed to a local dataset outlive a power loss. The order
    is that of what depends on what: data and deletions before the commit names them; then the transaction, the manifest
    and the manifest's directory, before the commit is acknowledged. An object store makes what it takes durable by
    itself.

    Files that this process has written are not tried (`iscp.storage.dataset_trial`) before it opens them, wherever they
    are.
    """

    def __init__(self, root: str) -> None:
        self._place = root
        self._root: Path | None = local_path(root)

    def sync_fragments(
        self,
        written: Iterable[FragmentMetadata],
        updated: Iterable[FragmentMetadata] = (),
        staged: Iterable[FragmentMetadata] = (),
    ) -> None:
        """Sync the data of fragments that are new, and the deletions of those that are not.

        `staged` are new ones that were written before, maybe by another process, which may have changed since.
        """
        new = [f"{_DATA}/{file.path}" for fragment in written for file in fragment.files]
        new += [found.path(each.id) for each in updated if (found := each.deletion_file) is not None]
        if self._root is not None:
            before = [f"{_DATA}/{file.path}" for fragment in staged for file in fragment.files]
            paths = {self._root / name for name in (*new, *before)}
            # Each file of iscp's own is synced when it is written, but not its name.
            self._sync_all({self._root, self._root / _OWN, *paths, *(each.parent for each in paths)})
        self._take_for_known(new)

    def sync_index(self, index_uuid: str) -> None:
        """Sync the files of an index's segment."""
        if self._root is not None:
            folder = self._root / _INDICES / index_uuid
            self._sync_all({*folder.glob("*"), folder, folder.parent, self._root})
        self._take_for_known([f"{_INDICES}/{index_uuid}"])

    def _take_for_known(self, names: Iterable[str]) -> None:
        """Have files that this process has just written not tried before it opens them."""
        if (trial := current_trial()) is not None:
            with storage_faults(f"list {self._place}"):
                trial.add_written(self._place, names)

    def sync_commit(self, dataset: LanceDataset) -> None:
        """Sync the transaction and the manifest of a dataset's version, and what names them."""
        if self._root is None:
            return
        transactions, versions = self._root / _TRANSACTIONS, self._root / _VERSIONS
        self._sync_all({transactions, *transactions.glob(f"{dataset.version - 1}-*.txn")})
        names = (f"{_VERSION_MAX - dataset.version}.manifest", f"{dataset.version}.manifest")
        self._sync_all({versions, *(versions / name for name in names)})

    def _sync_all(self, paths: Iterable[Path]) -> None:
        """Sync files and folders at once, of which the file system makes few writes: each alone has to wait for it."""
        for _ in _SYNCS.map(self._sync, sorted(paths)):
            pass

    def _sync(self, path: Path) -> None:
        with storage_faults(f"sync {path}"), suppress(FileNotFoundError):
            sync(path)


# --- the transaction --------------------------------------------------------------------------------------------------

ROWS_IN_FRAGMENT_MAX = 1_000_000
"""Rows of one file of a dataset."""

WRITES_AT_ONCE = 4
"""Files of all indexes of a process that commits write at the same time; further ones wait for their turn."""

COUNTED_AT_ONCE_ROWS = 20_000
"""Rows whose words are counted together, as more of them take memory."""

_OFFSET_BITS = 2**32 - 1
"""The bits of an address that say where in its fragment a row is."""

_WRITES = ThreadPoolExecutor(WRITES_AT_ONCE, "iscp-index-write")


class IndexTransaction:
    """The changes of one commit (port WatermarkTxn). `placed` is the head of `dataset`'s version, the base.

    The rows of changed keys are found by their addresses, marked as deleted in their fragments, and written into new
    fragments together with the head, all in one operation of Lance's (ADR 45). Nothing is visible before, and a commit
    after another writer's fails: each takes away the row with the head that it has read.
    """

    def __init__(self, root: str, dataset: LanceDataset, placed: PlacedHead, failpoints: Failpoints) -> None:
        self._root = root
        self._dataset = dataset
        self._schema: pa.Schema = dataset.schema
        self._failpoints = failpoints
        self._durable = DurableFiles(root)
        self._counts = WordCounts()
        self._uncounted: tuple[list[pa.Table], list[pa.Table]] = [], []
        self._fragments: list[FragmentMetadata] = []
        self._staged: list[FragmentMetadata] = []
        self._writing: Future[list[FragmentMetadata]] | None = None
        self._gone: dict[int, list[int]] = defaultdict(list)
        self._replaces = self._rewrites = False
        self._put: dict[str, str] = {}
        self._base, self._head_address = placed
        self._head = self._base

    @property
    def head(self) -> IndexHead:
        """Return the head as it is after what was added and removed so far."""
        self._count_words()
        return self._head

    @head.setter
    def head(self, head: IndexHead) -> None:
        self._head = head

    @property
    def dataset(self) -> LanceDataset:
        """Return the dataset at the version that the commit is based on."""
        return self._dataset

    def get(self, key: str) -> str | None:
        return self._put.get(key, self._head.records.get(key))

    def put(self, key: str, value: str) -> None:
        self._put[key] = value

    def replace_all(self, schema: pa.Schema, head: IndexHead, *, fences: bool = False) -> None:
        """Take away all rows that the index has: those that are added from now on are all.

        They are of `schema`, and `head` says what else is new; records, and the version that was applied, stay.
        `fences`: whatever is based on a version before it fails for as long as the new version's manifest is there,
        even if all manifests between are gone.
        """
        self._replaces = True
        self._rewrites = fences or not schema.equals(self._schema)
        self._schema = schema
        there = {name: getattr(self.head, name) for name in ("records", "version", "version_at_s", "whole")}
        self._head = replace(head.emptied(len(words_columns(schema))), **there)

    def apply(self, version: int, at_s: float, *, partly: bool = False) -> None:
        """Have the head say that the rows are of this version of the source, committed then (Unix seconds).

        `partly`: some rows are of the next version already, and searches read what was there before the first of them.
        """
        whole = (self._head.whole or int(self._dataset.version)) if partly else 0
        self._head = replace(self._head, version=version, version_at_s=at_s, whole=whole)

    def name_columns(self, column_ids: Mapping[str, str]) -> None:
        """Have the head say by which ids the source knows its columns."""
        self._head = replace(self._head, column_ids=dict(column_ids))

    def seek(self, keys: Sequence[str], *, with_vectors: bool = False) -> pa.Table:
        """Return what `remove` needs of the rows of the base with these keys.

        Without `with_vectors` the column `VECTOR` says whether there is one, where that is known without reading it, as
        the numbers of a vector are most of a row.
        """
        needed = [KEY, ROW_HASH, FAULT, *words_columns(self._dataset.schema)]
        if VECTOR not in self._dataset.schema.names:
            return self._rows(keys, needed)
        base = self._base
        if with_vectors or base.vectors != base.rows - base.faults:
            return self._rows(keys, [*needed, VECTOR, TEXT_HASH])
        found = self._rows(keys, needed)  # each of them that has no fault has a vector
        return found.append_column(VECTOR, pc.if_else(pc.is_null(found[FAULT]), True, None))

    def _rows(self, keys: Sequence[str], columns: list[str]) -> pa.Table:
        with lance_faults(f"read {self._root}"):
            return rows_with_keys(self._dataset, keys, columns)

    def remove(self, found: pa.Table) -> None:
        """Take away rows that `seek` has found."""
        self._drop(found[ADDRESS].to_pylist())
        self._count_later(1, found)

    def add(self, rows: pa.Table) -> None:
        """Add rows of the dataset's columns, whose keys no other row has that stays.

        Their files are written meanwhile, and mean nothing before the commit. Raises what the last call failed with.
        """
        if len(rows):
            self._await_written()
            self._writing = _WRITES.submit(self.write_rows, rows)
            self._count_later(0, rows)

    def _await_written(self) -> None:
        if self._writing is not None:
            self._fragments += self._writing.result()
            self._writing = None

    def write_rows(self, rows: pa.Table) -> list[FragmentMetadata]:
        """Write rows into files that no version has yet."""
        return write_rows(self._root, self._dataset, rows.cast(self._schema), rewrites=self._rewrites)

    def add_fragments(self, fragments: Sequence[FragmentMetadata], sums: RowSums, counts: pa.Table) -> None:
        """Add rows that `write_rows` has written, of which `sums` has the sums, and `counts` the counts of words."""
        self._staged += fragments
        self._counts.add_table(counts)
        self._add_sums(sums)

    def state_sums(self, sums: RowSums, counts: pa.Table) -> None:
        """Have the sums and the counts of words be these of all rows that there are after the commit, whatever those of
        the base and the changes come to.
        """
        self._counts, self._uncounted = WordCounts(), ([], [])
        self._counts.add_table(counts)
        nothing = (FieldTotals(),) * len(self._head.totals)
        self._head = replace(self._head, rows=0, faults=0, vectors=0, totals=nothing, count_files=())
        self._add_sums(sums)

    def commit(self, message: str = "") -> LanceDataset:
        """Commit, and return the dataset at the new version. Raises Conflict if another writer was first."""
        deleting = _WRITES.submit(self._take_away)
        self._count_words()  # meanwhile
        counts = self._counts.table()
        counted = [counts_name()] if len(counts) else []
        counting = [_WRITES.submit(self._write_counts, counts, name) for name in counted]
        self._head = replace(
            self._head,
            records={**self._head.records, **self._put},
            count_files=(*self._head.count_files, *counted),
        )
        heading = self.write_rows(head_rows(self._head, self._schema))
        removed, updated = deleting.result()
        self._await_written()
        self._fragments += heading
        for each in counting:
            each.result()
        self._failpoints.reach("index.fragments")
        with lance_faults(f"commit to {self._root}"):
            self._durable.sync_fragments(self._fragments, updated, self._staged)
            self._failpoints.reach("index.commit.before")
            require_version(self._root, self._dataset.version)
            committed = LanceDataset.commit(
                self._dataset,
                self._operation(removed, updated),
                read_version=self._dataset.version,
                max_retries=0,
                commit_message=message or None,
                storage_options=table_options(self._root),
            )
            self._failpoints.reach("index.commit.after")
            self._durable.sync_commit(committed)
        newest = max(committed.get_fragments(), key=lambda each: each.fragment_id)
        if newest.physical_rows == 1:  # the head, as it was written last
            cache_head(self._root, committed.version, PlacedHead(self._head, newest.fragment_id << 32))
        fragments = (*self._staged, *self._fragments)
        count_work(bytes_written=sum(file.file_size_bytes or 0 for each in fragments for file in each.files))
        return committed

    def _write_counts(self, counts: pa.Table, name: str) -> None:
        write_counts(self._root, counts, name)
        cache_counts(self._root, name, counts)

    def _operation(
        self, removed: list[int], updated: list[FragmentMetadata]
    ) -> LanceOperation.Overwrite | LanceOperation.Update:
        fragments = [*self._staged, *self._fragments]
        if self._rewrites:
            return LanceOperation.Overwrite(self._schema, fragments)
        return LanceOperation.Update(removed_fragment_ids=removed, updated_fragments=updated, new_fragments=fragments)

    def _take_away(self) -> tuple[list[int], list[FragmentMetadata]]:
        """Return the fragments that have no row left, and those of which rows are marked as deleted."""
        if self._replaces:
            return [each.fragment_id for each in self._dataset.get_fragments()], []
        removed, updated = [], []
        self._drop([self._head_address])
        with lance_faults(f"read {self._root}"):
            for number, offsets in self._gone.items():
                fragment = self._dataset.get_fragment(number)
                assert fragment is not None  # a row of it has been read
                if (left := fragment.delete_rows(offsets)) is None:
                    removed.append(number)
                else:
                    updated.append(left)
        return removed, updated

    def _drop(self, addresses: Iterable[int]) -> None:
        for address in addresses:
            self._gone[address >> 32].append(address & _OFFSET_BITS)

    def _count_later(self, side: int, rows: pa.Table) -> None:
        """Have the words of rows that come (side 0) or go (1) counted with those of others."""
        self._uncounted[side].append(rows)
        if sum(len(each) for tables in self._uncounted for each in tables) >= COUNTED_AT_ONCE_ROWS:
            self._count_words()

    def _count_words(self) -> None:
        come, go = self._uncounted
        self._uncounted = [], []
        if come or go:
            self._add_sums(count_rows(come, self._counts, go))

    def _add_sums(self, sums: RowSums) -> None:
        self._head = replace(
            self._head,
            rows=self._head.rows + sums.rows,
            faults=self._head.faults + sums.faults,
            vectors=self._head.vectors + sums.vectors,
            totals=tuple(each.plus(more) for each, more in zip(self._head.totals, sums.totals, strict=True)),
        )


class RowSums(NamedTuple):
    """The sums of some rows, as IndexHead has those of all; `totals` are pairs of (rows, words). Differences of such
    sums are negative where rows go.
    """

    rows: int
    faults: int
    vectors: int
    totals: tuple[tuple[int, int], ...]

    def plus(self, more: RowSums) -> RowSums:
        totals = zip(self.totals, more.totals, strict=True)
        return RowSums(
            self.rows + more.rows,
            self.faults + more.faults,
            self.vectors + more.vectors,
            tuple((one[0] + other[0], one[1] + other[1]) for one, other in totals),
        )


def count_rows(come: Sequence[pa.Table], counts: WordCounts, go: Sequence[pa.Table] = ()) -> RowSums:
    """Return the sums of rows less those of rows that go, and have `counts` count their words."""
    names = words_columns((*come, *go)[0].schema)
    vectors = VECTOR in (*come, *go)[0].schema.names
    return RowSums(
        _more(come, go, len),
        _more(come, go, lambda rows: len(rows) - int(rows[FAULT].null_count)),
        _more(come, go, lambda rows: len(rows) - int(rows[VECTOR].null_count)) if vectors else 0,
        tuple(counts.add(number, _texts(come, name), _texts(go, name)) for number, name in enumerate(names)),
    )


def _more(come: Sequence[pa.Table], go: Sequence[pa.Table], counted: Callable[[pa.Table], int]) -> int:
    return sum(map(counted, come)) - sum(map(counted, go))


def _texts(tables: Sequence[pa.Table], name: str) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for each in tables for chunk in each[name].chunks], pa.string())


def write_rows(root: str, dataset: LanceDataset, rows: pa.Table, *, rewrites: bool = False) -> list[FragmentMetadata]:
    """Write rows into files that no version has yet; with `rewrites` their columns are others than the dataset's."""
    with lance_faults(f"write to {root}"):
        return list(
            write_fragments(
                rows,
                dataset,
                mode="overwrite" if rewrites else "append",
                max_rows_per_file=ROWS_IN_FRAGMENT_MAX,
                storage_options=table_options(root),
            )
        )


def head_rows(head: IndexHead, schema: pa.Schema) -> pa.Table:
    """Return the one row with a head."""
    known = {KEY: [HEAD_KEY], HEAD: [head.to_json()]}
    return pa.table([pa.array(known.get(field.name, [None]), field.type) for field in schema], schema=schema)
