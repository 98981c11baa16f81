"""A consumer for iscp: a table of a SQLite file that follows a Delta table. Rows and watermark are one transaction.

The job's target is the path of the file; the option `table` names the table in it (otherwise `rows`).
"""

import sqlite3
from contextlib import closing

from iscp.consumers.custom import CustomConsumer, DataType, InvalidRequest, position_of


class SqliteTable(CustomConsumer):
    """Values have to be of types that SQLite knows: texts, numbers, bytes and nothing."""

    @classmethod
    def check(cls, spec, source):
        if not spec.key:
            raise InvalidRequest("is missing", field="spec.iteration.consumer.key", remedy="Name the key's columns")
        if unknown := set(spec.options) - {"table"}:
            raise InvalidRequest(f"has unknown names: {unknown}", field="spec.iteration.consumer.options")

    def position(self):
        with closing(self._open()) as db:
            return position_of(Watermarks(db).get(self.watermark_key))

    def consume(self, context, retriever):
        table = self.options.get("table", "rows")
        columns, key = retriever.inserts.columns, self.spec.key
        these = " AND ".join(f'"{name}" IS ?' for name in key)
        with closing(self._open()) as db:  # what is not committed is rolled back
            db.execute("BEGIN IMMEDIATE")  # from here on nobody else writes
            if retriever.data_type is DataType.SNAPSHOT:
                db.execute(f'DROP TABLE IF EXISTS "{table}"')
                names, keys = (", ".join(f'"{name}"' for name in each) for each in (columns, key))
                db.execute(f'CREATE TABLE "{table}" ({names}, PRIMARY KEY ({keys}))')
            while (pair := retriever.next()) is not None:
                for rows in pair:  # new rows replace those with their key
                    db.executemany(f'DELETE FROM "{table}" WHERE {these}', rows_of(rows, key))
                values = ", ".join("?" * len(columns))
                db.executemany(f'INSERT INTO "{table}" VALUES ({values})', rows_of(pair[0], columns))
            retriever.update_watermark(Watermarks(db))
            db.commit()

    def _open(self):
        db = sqlite3.connect(self.spec.target, timeout=60, isolation_level=None)
        db.execute("CREATE TABLE IF NOT EXISTS iscp_watermarks (key TEXT PRIMARY KEY, value TEXT NOT NULL)")
        return db


class Watermarks:
    """Where the watermark is kept: in the same file, so that it is committed, or rolled back, with the rows."""

    def __init__(self, db):
        self._db = db

    def get(self, key):
        found = self._db.execute("SELECT value FROM iscp_watermarks WHERE key = ?", (key,)).fetchone()
        return found[0] if found else None

    def put(self, key, value):
        self._db.execute("INSERT OR REPLACE INTO iscp_watermarks VALUES (?, ?)", (key, value))


def rows_of(table, names):
    """Rows of an Arrow table as tuples of plain values; `_commit_timestamp` as text."""
    picked = [table[name].to_pylist() for name in names]
    return [tuple(map(plain, row)) for row in zip(*picked, strict=True)]


def plain(value):
    return value.isoformat() if hasattr(value, "isoformat") else value
