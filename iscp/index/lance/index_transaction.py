"""One commit of an index: rows that go, rows that come, and the head, at exactly the version that was read.

The rows of changed keys are found by their addresses, marked as deleted in their fragments, and written anew into new
fragments together with the head, all in one operation of Lance's (ADR 45). Nothing is visible before, and a commit
after another writer's fails: each takes away the row with the head that it has read.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from lance import LanceDataset, LanceOperation
from lance.fragment import write_fragments

from iscp.adapters.delta.storage.bucket_keys import table_options
from iscp.index.lance.durable_files import DurableFiles
from iscp.index.lance.index_columns import FAULT, HEAD, HEAD_KEY, KEY, TEXT_HASH, VECTOR, words_columns
from iscp.index.lance.index_head import IndexHead
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.row_lookup import ADDRESS, head_row, rows_with_keys
from iscp.index.lance.word_counts import WordCounts, write_counts

if TYPE_CHECKING:
    from lance import FragmentMetadata

    from iscp.ports.system import Failpoints

ROWS_IN_FRAGMENT_MAX = 1_000_000
"""Rows of one file of a dataset."""


class IndexTransaction:
    """The changes of one commit (port WatermarkTxn). `head` is that of `dataset`'s version, which is the base."""

    def __init__(self, root: str, dataset: LanceDataset, head: IndexHead, failpoints: Failpoints) -> None:
        self._root = root
        self._dataset = dataset
        self._failpoints = failpoints
        self._durable = DurableFiles(root)
        self._words = words_columns(dataset.schema)
        self._counts = WordCounts()
        self._fragments: list[FragmentMetadata] = []
        self._gone: list[str] = []
        self._replaces = False
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

    def replace_all(self) -> None:
        """Take away all rows that the index has: those that are added from now on are all."""
        self._replaces = True
        self.head = self.head.emptied()

    def remove(self, keys: Sequence[str]) -> None:
        """Take away the rows with these keys; a key that no row has does nothing."""
        self._gone += keys

    def add(self, rows: pa.Table) -> None:
        """Add rows of the dataset's columns, whose keys no other row has that stays.

        Their files are written at once, and mean nothing before the commit.
        """
        if len(rows):
            self._count(rows, 1)
            self._write(rows)

    def add_fragments(self, fragments: Sequence[FragmentMetadata], head: IndexHead, counts: pa.Table) -> None:
        """Add rows that were written already; `head` and `counts` say of them what is said of all rows."""
        self._fragments += fragments
        totals = [one.plus((each.rows, each.words)) for one, each in zip(self.head.totals, head.totals, strict=True)]
        self.head = replace(
            self.head,
            rows=self.head.rows + head.rows,
            faults=self.head.faults + head.faults,
            vectors=self.head.vectors + head.vectors,
            totals=tuple(totals),
        )
        self._counts.add_table(counts)

    def commit(self, message: str = "") -> LanceDataset:
        """Commit, and return the dataset at the new version. Raises Conflict if another writer was first."""
        began_s = time.time()
        removed, updated = self._take_away()
        self._failpoints.reach("index.fragments")
        counts = self._counts.table()
        counted = [write_counts(self._root, counts)] if len(counts) else []
        self.head = replace(
            self.head,
            records={**self.head.records, **self._put},
            count_files=(*self.head.count_files, *counted),
        )
        self._write(self._head_rows())
        with lance_faults(f"commit to {self._root}"):
            self._durable.sync_fragments(self._fragments, began_s - 1)
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
            return committed

    def _operation(
        self, removed: list[int], updated: list[FragmentMetadata]
    ) -> LanceOperation.Overwrite | LanceOperation.Update:
        if self._replaces:
            return LanceOperation.Overwrite(self._dataset.schema, self._fragments)
        return LanceOperation.Update(
            removed_fragment_ids=removed, updated_fragments=updated, new_fragments=self._fragments
        )

    def _take_away(self) -> tuple[list[int], list[FragmentMetadata]]:
        """Return the fragments that have no row left, and those of which rows are marked as deleted."""
        if self._replaces:
            return [], []
        with lance_faults(f"read {self._root}"):
            vectors = [VECTOR, TEXT_HASH] if VECTOR in self._dataset.schema.names else []
            gone = rows_with_keys(self._dataset, self._gone, [FAULT, *self._words, *vectors[1:]])
            self._count(gone, -1, self._vectors_of(gone))
            addresses = [*gone[ADDRESS].to_pylist(), *head_row(self._dataset, [KEY])[ADDRESS].to_pylist()]
            by_fragment: dict[int, list[int]] = defaultdict(list)
            for address in addresses:
                by_fragment[address >> 32].append(address)
            removed, updated = [], []
            for number, rows in by_fragment.items():
                fragment = self._dataset.get_fragment(number)
                assert fragment is not None  # a row of it has just been read
                left = fragment.delete(f"{ADDRESS} IN ({','.join(map(str, rows))})")
                if left is None:
                    removed.append(number)
                else:
                    updated.append(left)
            return removed, updated

    def _vectors_of(self, gone: pa.Table) -> int:
        """Return how many of the rows that go have a vector, without reading the vectors."""
        if VECTOR not in self._dataset.schema.names or not len(gone):
            return 0
        found = self._dataset._take_rows(gone[ADDRESS].to_pylist(), columns=[VECTOR])
        return len(found) - int(found[VECTOR].null_count)

    def _count(self, rows: pa.Table, sign: int, vectors: int | None = None) -> None:
        totals = [
            each.plus(self._counts.add(number, rows[name], sign), sign)
            for number, (name, each) in enumerate(zip(self._words, self.head.totals, strict=True))
        ]
        if vectors is None:
            vectors = len(rows) - int(rows[VECTOR].null_count) if VECTOR in rows.schema.names else 0
        self.head = replace(
            self.head,
            rows=self.head.rows + sign * len(rows),
            faults=self.head.faults + sign * (len(rows) - int(rows[FAULT].null_count)),
            vectors=self.head.vectors + sign * vectors,
            totals=tuple(totals),
        )

    def _write(self, rows: pa.Table) -> None:
        with lance_faults(f"write to {self._root}"):
            self._fragments += write_fragments(
                rows.cast(self._dataset.schema),
                self._dataset,
                mode="append",
                max_rows_per_file=ROWS_IN_FRAGMENT_MAX,
                storage_options=table_options(self._root),
            )

    def _head_rows(self) -> pa.Table:
        return head_rows(self.head, self._dataset.schema)


def head_rows(head: IndexHead, schema: pa.Schema) -> pa.Table:
    """Return the one row with a head."""
    known = {KEY: [HEAD_KEY], HEAD: [head.to_json()]}
    return pa.table([pa.array(known.get(field.name, [None]), field.type) for field in schema], schema=schema)
