"""As iscp_sqlite, for several nodes at a time: each range of the keys has rows and a watermark of its own."""

from contextlib import closing

from iscp_sqlite import SqliteTable, Watermarks, rows_of

from iscp.consumers.custom import DataType, ShardedConsumer


class ShardedSqliteTable(ShardedConsumer):
    check = SqliteTable.check
    _open = SqliteTable._open

    def read_watermark(self, key):
        with closing(self._open()) as db:
            return Watermarks(db).get(key)

    def consume(self, context, retriever):
        table = self.options.get("table", "rows")
        columns, key = retriever.inserts.columns, self.spec.key
        these = " AND ".join(f'"{name}" IS ?' for name in key)
        with closing(self._open()) as db:
            db.execute("BEGIN IMMEDIATE")
            if retriever.data_type is DataType.SNAPSHOT:  # of this range: the rows of others stay
                names, keys = (", ".join(f'"{name}"' for name in each) for each in (columns, key))
                db.execute(f'CREATE TABLE IF NOT EXISTS "{table}" ({names}, PRIMARY KEY ({keys}))')
                db.execute(f'DELETE FROM "{table}" WHERE _key_hash BETWEEN ? AND ?', self.hashes)
            while (pair := retriever.next()) is not None:
                for rows in pair:
                    db.executemany(f'DELETE FROM "{table}" WHERE {these}', rows_of(rows, key))
                values = ", ".join("?" * len(columns))
                db.executemany(f'INSERT INTO "{table}" VALUES ({values})', rows_of(pair[0], columns))
            retriever.update_watermark(Watermarks(db))
            db.commit()
