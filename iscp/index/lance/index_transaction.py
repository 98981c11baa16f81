"""One commit of an index: rows that go, rows that come, and the head, at exactly the version that was read.

The rows of changed keys are found by their addresses, marked as deleted in their fragments, and written into new
fragments together with the head, all in one operation of Lance's (ADR 45). Nothing is visible before, and a commit
after another writer's fails: each takes away the row with the head that it has read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from lance import LanceDataset, LanceOperation
from lance.fragment import write_fragments

from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.index.lance.address_lookup import ADDRESS, head_row, rows_with_keys
from iscp.index.lance.durable_files import DurableFiles
from iscp.index.lance.head_cache import cache_head
from iscp.index.lance.index_columns import FAULT, HEAD, HEAD_KEY, KEY, ROW_HASH, TEXT_HASH, VECTOR, words_columns
from iscp.index.lance.index_head import FieldTotals, IndexHead
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.word_counts import WordCounts, counts_name, write_counts

if TYPE_CHECKING:
    from lance import FragmentMetadata

    from iscp.ports.system import Failpoints

ROWS_IN_FRAGMENT_MAX = 1_000_000
"""Rows of one file of a dataset."""

WRITES_AT_ONCE = 4
"""Files of all indexes of a process that commits write at the same time; further ones wait for their turn."""

_WRITES = ThreadPoolExecutor(WRITES_AT_ONCE, "iscp-index-write")


class IndexTransaction:
    """The changes of one commit (port WatermarkTxn). `head` is that of `dataset`'s version, which is the base."""

    def __init__(self, root: str, dataset: LanceDataset, head: IndexHead, failpoints: Failpoints) -> None:
        self._root = root
        self._dataset = dataset
        self._schema: pa.Schema = dataset.schema
        self._failpoints = failpoints
        self._durable = DurableFiles(root)
        self._counts = WordCounts()
        self._fragments: list[FragmentMetadata] = []
        self._writing: Future[list[FragmentMetadata]] | None = None
        self._gone: dict[int, list[int]] = defaultdict(list)
        self._replaces = self._rewrites = False
        self._put: dict[str, str] = {}
        self.head = head

    @property
    def dataset(self) -> LanceDataset:
        """Return the dataset at the version that the commit is based on."""
        return self._dataset

    def get(self, key: str) -> str | None:
        return self._put.get(key, self.head.records.get(key))

    def put(self, key: str, value: str) -> None:
        self._put[key] = value

    def replace_all(self, schema: pa.Schema, head: IndexHead) -> None:
        """Take away all rows that the index has: those that are added from now on are all.

        They are of `schema`, and `head` says what else is new; records, and the version that was applied, stay.
        """
        self._replaces = True
        self._rewrites = not schema.equals(self._schema)
        self._schema = schema
        there = {name: getattr(self.head, name) for name in ("records", "version", "version_at_s", "whole")}
        self.head = replace(head.emptied(len(words_columns(schema))), **there)

    def apply(self, version: int, at_s: float, *, partly: bool = False) -> None:
        """Have the head say that the rows are of this version of the source, committed then (Unix seconds).

        `partly`: some rows are of the next version already, and searches read what was there before the first of them.
        """
        whole = (self.head.whole or int(self._dataset.version)) if partly else 0
        self.head = replace(self.head, version=version, version_at_s=at_s, whole=whole)

    def seek(self, keys: Sequence[str], columns: Sequence[str] = ()) -> pa.Table:
        """Return the rows of the base with these keys: `columns`, and those that `remove` needs."""
        needed = [KEY, ROW_HASH, FAULT, *words_columns(self._dataset.schema)]
        if VECTOR in self._dataset.schema.names:
            needed += [VECTOR, TEXT_HASH]
        with lance_faults(f"read {self._root}"):
            return rows_with_keys(self._dataset, keys, list(dict.fromkeys([*needed, *columns])))

    def remove(self, found: pa.Table) -> None:
        """Take away rows that `seek` has found."""
        for address in found[ADDRESS].to_pylist():
            self._gone[address >> 32].append(address)
        self._count(found, -1)

    def add(self, rows: pa.Table) -> None:
        """Add rows of the dataset's columns, whose keys no other row has that stays.

        Their files are written meanwhile, and mean nothing before the commit. Raises what the last call failed with.
        """
        if len(rows):
            self._await_written()
            self._writing = _WRITES.submit(self.write_rows, rows)
            self._count(rows, 1)

    def _await_written(self) -> None:
        if self._writing is not None:
            self._fragments += self._writing.result()
            self._writing = None

    def write_rows(self, rows: pa.Table) -> list[FragmentMetadata]:
        """Write rows into files that no version has yet."""
        return write_rows(self._root, self._dataset, rows.cast(self._schema), rewrites=self._rewrites)

    def add_fragments(self, fragments: Sequence[FragmentMetadata], sums: RowSums, counts: pa.Table) -> None:
        """Add rows that `write_rows` has written, of which `sums` has the sums, and `counts` the counts of words."""
        self._fragments += fragments
        self._counts.add_table(counts)
        self._add_sums(sums, 1)

    def state_sums(self, sums: RowSums, counts: pa.Table) -> None:
        """Have the sums and the counts of words be these of all rows that there are after the commit, whatever those of
        the base and the changes come to.
        """
        self._counts = WordCounts()
        self._counts.add_table(counts)
        nothing = (FieldTotals(),) * len(self.head.totals)
        self.head = replace(self.head, rows=0, faults=0, vectors=0, totals=nothing, count_files=())
        self._add_sums(sums, 1)

    def commit(self, message: str = "") -> LanceDataset:
        """Commit, and return the dataset at the new version. Raises Conflict if another writer was first."""
        counts = self._counts.table()
        counted = [counts_name()] if len(counts) else []
        self.head = replace(
            self.head,
            records={**self.head.records, **self._put},
            count_files=(*self.head.count_files, *counted),
        )
        heading = _WRITES.submit(self.write_rows, head_rows(self.head, self._schema))
        counting = [_WRITES.submit(write_counts, self._root, counts, name) for name in counted]
        removed, updated = self._take_away()
        self._await_written()
        self._fragments += heading.result()
        for each in counting:
            each.result()
        self._failpoints.reach("index.fragments")
        with lance_faults(f"commit to {self._root}"):
            self._durable.sync_fragments(self._fragments, updated)
            self._failpoints.reach("index.commit.before")
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
        cache_head(self._root, committed.version, self.head)
        return committed

    def _operation(
        self, removed: list[int], updated: list[FragmentMetadata]
    ) -> LanceOperation.Overwrite | LanceOperation.Update:
        if self._rewrites:
            return LanceOperation.Overwrite(self._schema, self._fragments)
        return LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=updated, new_fragments=self._fragments
        )

    def _take_away(self) -> tuple[list[int], list[FragmentMetadata]]:
        """Return the fragments that have no row left, and those of which rows are marked as deleted."""
        if self._replaces:
            return [each.fragment_id for each in self._dataset.get_fragments()], []
        removed, updated = [], []
        with lance_faults(f"read {self._root}"):
            for address in head_row(self._dataset, [KEY])[ADDRESS].to_pylist():
                self._gone[address >> 32].append(address)
            for number, left in zip(self._gone, _WRITES.map(self._without, self._gone.items()), strict=True):
                if left is None:
                    removed.append(number)
                else:
                    updated.append(left)
        return removed, updated

    def _without(self, gone: tuple[int, list[int]]) -> FragmentMetadata | None:
        """Mark rows of a fragment as deleted, and return what is left of it; None for nothing."""
        number, addresses = gone
        fragment = self._dataset.get_fragment(number)
        assert fragment is not None  # a row of it has been read
        return fragment.delete(f"{ADDRESS} IN ({','.join(map(str, addresses))})")

    def _count(self, rows: pa.Table, sign: int) -> None:
        self._add_sums(count_rows(rows, self._counts, sign), sign)

    def _add_sums(self, sums: RowSums, sign: int) -> None:
        self.head = replace(
            self.head,
            rows=self.head.rows + sign * sums.rows,
            faults=self.head.faults + sign * sums.faults,
            vectors=self.head.vectors + sign * sums.vectors,
            totals=tuple(each.plus(more, sign) for each, more in zip(self.head.totals, sums.totals, strict=True)),
        )


class RowSums(NamedTuple):
    """The sums of some rows, as IndexHead has those of all; `totals` are pairs of (rows, words)."""

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


def count_rows(rows: pa.Table, counts: WordCounts, sign: int = 1) -> RowSums:
    """Return the sums of rows, and add their words to `counts`, or take them away (sign -1)."""
    names = words_columns(rows.schema)
    return RowSums(
        len(rows),
        len(rows) - int(rows[FAULT].null_count),
        len(rows) - int(rows[VECTOR].null_count) if VECTOR in rows.schema.names else 0,
        tuple(counts.add(number, rows[name], sign) for number, name in enumerate(names)),
    )


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
