"""Delta tables that cases change, and beside them the same rows in SQLite, which says what has to be in the targets."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

Row = tuple[Any, ...]
Bag = Counter[Row]

EVER = "_ever"
"""Ends the name of the table of all rows that commits have written to a table, those that are gone again too."""

TYPES = {"INTEGER": pa.int64(), "TEXT": pa.string(), "REAL": pa.float64()}

_DELTA_TYPES = {"INTEGER": "long", "TEXT": "string", "REAL": "double"}

_FEED = {"delta.enableChangeDataFeed": "true"}


class ModelTable:
    """One Delta table. Each method is one commit to it, and does the same in SQLite."""

    def __init__(self, db: sqlite3.Connection, uri: str, name: str, columns: Mapping[str, str]) -> None:
        self.uri, self.name, self.columns = uri, name, dict(columns)
        self._db = db
        self._versions: dict[str, tuple[int, list[Row]]] = {}
        for each in (name, name + EVER):
            db.execute(f"CREATE TABLE {each} ({', '.join(f'{column} {kind}' for column, kind in columns.items())})")

    def create(self, rows: Sequence[Row]) -> None:
        write_deltalake(self.uri, self._arrow(rows), configuration=_FEED)
        self._replace(rows, came=rows)

    def replace(self, *rows: Row) -> None:
        """Drop the table, and make another one in its place."""
        shutil.rmtree(self.uri)
        self.create(rows)

    def insert(self, *rows: Row) -> None:
        write_deltalake(self.uri, self._arrow(rows), mode="append")
        self._replace([*self.rows(), *rows], came=rows)

    def delete(self, where: str) -> None:
        DeltaTable(self.uri).delete(where)
        self._change(f"DELETE FROM {self.name} WHERE {where}")

    def update(self, column: str, value: str, where: str) -> None:
        DeltaTable(self.uri).update({column: value}, predicate=where)
        self._change(f"UPDATE {self.name} SET {column} = {value} WHERE {where}")

    def upsert(self, *rows: Row) -> None:
        """Merge rows by the first column."""
        key = next(iter(self.columns))
        merge = DeltaTable(self.uri).merge(self._arrow(rows), f"s.{key} = t.{key}", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        fresh = {row[0] for row in rows}
        self._replace([*(row for row in self.rows() if row[0] not in fresh), *rows])

    def overwrite(self, *rows: Row) -> None:
        """Replace all rows by others, none of which was there."""
        write_deltalake(self.uri, self._arrow(rows), mode="overwrite")
        self._replace(rows)

    def add_column(self, name: str, kind: str, *rows: Row) -> None:
        """Insert rows with one more column, which is null in all others; without rows the column comes alone."""
        self.columns[name] = kind
        for each in (self.name, self.name + EVER):
            self._db.execute(f"ALTER TABLE {each} ADD COLUMN {name} {kind}")
        if rows:
            write_deltalake(self.uri, self._arrow(rows), mode="append", schema_mode="merge")
        else:
            DeltaTable(self.uri).alter.add_columns(Field(name, PrimitiveType(_DELTA_TYPES[kind])))
        self._replace([*self.rows(), *rows], came=rows)

    def compact(self) -> None:
        """Rewrite the files, and no row."""
        DeltaTable(self.uri).optimize.compact()

    def touch(self) -> None:
        """Commit nothing but a property."""
        table = DeltaTable(self.uri)
        table.alter.set_table_properties({"touched": str(table.version())}, raise_if_not_exists=False)

    def name_version(self, name: str) -> None:
        """Remember the newest version by a name, for `restore`."""
        self._versions[name] = DeltaTable(self.uri).version(), self.rows()

    def restore(self, name: str) -> None:
        version, rows = self._versions[name]
        DeltaTable(self.uri).restore(version)
        self._replace(rows)

    def rows(self) -> list[Row]:
        return self._db.execute(f"SELECT * FROM {self.name}").fetchall()

    def _arrow(self, rows: Sequence[Row]) -> pa.Table:
        fields = [pa.field(name, TYPES[kind]) for name, kind in self.columns.items()]
        values = zip(*rows, strict=True) if rows else ((),) * len(fields)
        return pa.table(
            [pa.array(list(each), kind.type) for each, kind in zip(values, fields, strict=True)], pa.schema(fields)
        )

    def _change(self, statement: str) -> None:
        before = Counter(self.rows())
        self._db.execute(statement)
        self._note_new(list((Counter(self.rows()) - before).elements()))

    def _replace(self, rows: Sequence[Row], came: Sequence[Row] | None = None) -> None:
        """Have these rows and no others; `came`: those of them that were written (None: those that were not there)."""
        before = Counter(self.rows())
        self._db.execute(f"DELETE FROM {self.name}")
        self._insert(self.name, rows)
        self._note_new(list((Counter(rows) - before).elements()) if came is None else came)

    def _note_new(self, rows: Sequence[Row]) -> None:
        self._insert(self.name + EVER, rows)

    def _insert(self, name: str, rows: Sequence[Row]) -> None:
        self._db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(self.columns))})", rows)


class ModelLake:
    """The tables of a case below one directory: `orders` and `customers`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._db = sqlite3.connect(":memory:")
        self.orders = self._table("orders", {"id": "INTEGER", "customer": "TEXT", "total": "INTEGER"})
        self.customers = self._table("customers", {"customer": "TEXT", "city": "TEXT"})

    def _table(self, name: str, columns: Mapping[str, str]) -> ModelTable:
        return ModelTable(self._db, str(self.root / name), name, columns)

    def answer(self, sql: str) -> tuple[list[str], Bag]:
        """Return the names of a query's columns and its rows."""
        cursor = self._db.execute(sql)
        return [name for name, *_ in cursor.description], Counter(cursor.fetchall())

    def define(self, name: str, sql: str) -> None:
        """Have a name for a query's rows, as other jobs read the target of one."""
        self._db.execute(f"CREATE VIEW {name} AS {sql}")

    def close(self) -> None:
        self._db.close()
