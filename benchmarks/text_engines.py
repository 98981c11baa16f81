"""Engines of full text that benchmarks.fulltext measures by turns: an index of iscp's, tantivy, and SQLite's FTS5.

Each has the same documents, commits the same changes durably, and is searched for any of a query's words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import tantivy

from benchmarks.fed_index import FedIndex, fresh_folder, net_changes
from benchmarks.zipf_texts import rows
from iscp.index.search.search_library import search

K = 10
OPTIONS = {"columns": "body", "stored": "price"}
SCHEMA = pa.schema([("id", pa.int64()), ("body", pa.string()), ("price", pa.int64())])
TANTIVY_HEAP_BYTES = 128 * 1024**2


class Change:
    """Rows to write, the last `new` of which have new keys, and keys to delete."""

    def __init__(self, keys: Sequence[int], bodies: Sequence[str], new: int, gone: Sequence[int]) -> None:
        self.keys, self.bodies, self.new, self.gone = list(keys), list(bodies), new, list(gone)

    def net(self) -> pa.Table:
        return net_changes(rows(self.keys, self.bodies), self.new, rows(self.gone, [""] * len(self.gone)))


class TextEngine(Protocol):
    name: str

    def build(self, tables: Iterable[pa.Table]) -> None: ...

    def change(self, change: Change) -> None:
        """Commit a change; searches that begin afterwards show it."""

    def search(self, query: str) -> list[int]:
        """The keys of the best ten documents that have one of the words."""


class IscpEngine:
    """Searches wait for the version that was committed last, and so are never answered from before it."""

    name = "iscp"

    def __init__(self, folder: Path) -> None:
        self.index = FedIndex(str(folder / "index"), "fulltext", OPTIONS, SCHEMA)
        self.version = 0

    def build(self, tables: Iterable[pa.Table]) -> None:
        self.index.build(tables)

    def change(self, change: Change) -> None:
        self.version = self.index.change(change.net())

    def search(self, query: str) -> list[int]:
        answer = search(self.index.uri, query, k=K, min_version=self.version)
        return [hit.key["id"] for hit in answer.hits]


class TantivyEngine:
    name = "tantivy"

    def __init__(self, folder: Path) -> None:
        made = tantivy.SchemaBuilder()
        made.add_integer_field("id", stored=True, indexed=True, fast=True)
        made.add_text_field("body", stored=True)
        self._index = tantivy.Index(made.build(), str(fresh_folder(folder / "tantivy")))
        self._writer: Any = self._index.writer(TANTIVY_HEAP_BYTES)

    def build(self, tables: Iterable[pa.Table]) -> None:
        for table in tables:
            self._add(table["id"].to_pylist(), table["body"].to_pylist())
        self._publish()

    def _add(self, keys: Sequence[int], bodies: Sequence[str]) -> None:
        for key, body in zip(keys, bodies, strict=True):
            self._writer.add_document(tantivy.Document(id=key, body=body))

    def _publish(self) -> None:
        self._writer.commit()
        self._index.reload()

    def change(self, change: Change) -> None:
        for key in (*change.keys, *change.gone):
            self._writer.delete_documents_by_term("id", key)
        self._add(change.keys, change.bodies)
        self._publish()

    def search(self, query: str) -> list[int]:
        searcher = self._index.searcher()
        found = searcher.search(self._index.parse_query(query, ["body"]), K)
        return [searcher.doc(address)["id"][0] for _, address in found.hits]


class SqliteEngine:
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._base = sqlite3.connect(fresh_folder(folder / "sqlite") / "documents.db", isolation_level=None)
        self._base.execute("PRAGMA journal_mode = WAL")
        self._base.execute("PRAGMA synchronous = FULL")
        self._base.execute("CREATE VIRTUAL TABLE documents USING fts5(body)")

    def build(self, tables: Iterable[pa.Table]) -> None:
        self._base.execute("BEGIN")
        for table in tables:
            self._add(table["id"].to_pylist(), table["body"].to_pylist())
        self._base.execute("COMMIT")

    def _add(self, keys: Sequence[int], bodies: Sequence[str]) -> None:
        self._base.executemany("INSERT INTO documents(rowid, body) VALUES (?, ?)", zip(keys, bodies, strict=True))

    def change(self, change: Change) -> None:
        self._base.execute("BEGIN")
        gone = [(key,) for key in (*change.keys, *change.gone)]
        self._base.executemany("DELETE FROM documents WHERE rowid = ?", gone)
        self._add(change.keys, change.bodies)
        self._base.execute("COMMIT")

    def search(self, query: str) -> list[int]:
        words = " OR ".join(f'"{word}"' for word in query.split())
        found = self._base.execute(
            f"SELECT rowid FROM documents WHERE documents MATCH ? ORDER BY bm25(documents) LIMIT {K}", (words,)
        )
        return [key for (key,) in found]
