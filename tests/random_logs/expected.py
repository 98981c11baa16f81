"""What followers have to hold, made of the rows that a table has: SQLite answers the views' queries."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise

from tests.random_logs.cases import Follower, Kind
from tests.random_logs.columns import COLUMNS, FIRST_COLUMNS, KEYS, Row

OTHER_ROWS = ((0, "m"), (1, "m"), (1, "n"), (None, "o"), *((key, "n") for key in range(2, KEYS, 3)))
"""Of the table `u`, with the columns `k` and `x`."""

Bag = Counter[Row]


def narrowed(bag: Bag) -> Bag:
    """Rows with the table's first columns alone."""
    found: Bag = Counter()
    for row, often in bag.items():
        found[row[:FIRST_COLUMNS]] += often
    return found


def passing(bag: Bag, condition: str) -> Bag:
    if not condition:
        return narrowed(bag)
    names = ", ".join(column.name for column in COLUMNS[:FIRST_COLUMNS])
    return answer(bag, f"SELECT {names} FROM t WHERE {condition}")


def answer(bag: Bag, sql: str) -> Bag:
    """The query's rows over `t`, which has the rows of the bag, and `u`."""
    with closing(sqlite3.connect(":memory:")) as db:
        names = [column.name for column in COLUMNS[:FIRST_COLUMNS]]
        db.execute(f"CREATE TABLE t ({', '.join(names)})")
        db.execute("CREATE TABLE u (k, x)")
        marks = ", ".join("?" * len(names))
        db.executemany(f"INSERT INTO t VALUES ({marks})", list(narrowed(bag).elements()))
        db.executemany("INSERT INTO u VALUES (?, ?)", OTHER_ROWS)
        return Counter(db.execute(sql).fetchall())


def wanted(follower: Follower, bag: Bag) -> Bag:
    """The rows of a view or of a keyed replica: those that share a key are not in it."""
    if follower.kind is Kind.VIEW:
        return answer(bag, follower.sql)
    rows = passing(bag, follower.condition)
    often: Counter[object] = Counter()
    for row, number in rows.items():
        often[row[0]] += number
    return Counter({row: number for row, number in rows.items() if often[row[0]] == 1})


def archive_bounds(follower: Follower, held: Bag, bags: Iterable[Bag]) -> tuple[Bag, Bag]:
    """The least and the most that an archive may have after versions with these rows, the first those it had seen.

    The most is every row that a version had more of than the one before; the least, all rows of the newest.
    """
    versions = [passing(bag, follower.condition) for bag in bags]
    most = Counter(held)
    for before, after in pairwise(versions):
        most += after - before
    return held | versions[-1], most
