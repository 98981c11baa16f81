"""A process that keeps changing a lake's tables: `python -m tests.soak.writing LAKE TABLES PACE SEED`.

It commits PACE times a second on average, if the machine bears it: mostly to a few tables, as applications do, and now
and then to any of them. It ends by SIGTERM, between two commits, and prints how many there were.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time

import pyarrow as pa

from tests.e2e.harness import append, delete, upsert
from tests.e2e.writer import STATES, events
from tests.soak.soak_plan import PlannedTable

WORDS = ("amber", "birch", "coral", "delta", "ember", "fjord", "grove", "heath")
IDS = 60
"""Keys that a table with a key can have: so few that rows are mostly changed, and tables stay small."""

HOT_SHARE = 0.1
HOT_COMMITS = 0.7
"""A tenth of the tables gets seven of ten commits."""

ROWS_MAX = 12


def keyed_rows(ids: list[int], chance: random.Random) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "state": [chance.choice(STATES) for _ in ids],
            "amount": pa.array([chance.randrange(1_000) for _ in ids], pa.int64()),
            "body": [" ".join(chance.sample(WORDS, 3)) for _ in ids],
        }
    )


def first_rows(table: PlannedTable, chance: random.Random) -> pa.Table:
    return keyed_rows(list(range(0, IDS, 2)), chance) if table.keyed else events(0, 20)


class TableWriter:
    """Commits changes to tables below `lake`, drawn by `chance`."""

    def __init__(self, lake: str, tables: list[PlannedTable], chance: random.Random) -> None:
        self._lake, self._tables, self._chance = lake, tables, chance
        self._hot = tables[: max(1, round(HOT_SHARE * len(tables)))]
        self._appended = 1_000

    def draw(self) -> PlannedTable:
        """Return the table of the next commit."""
        return self._chance.choice(self._hot if self._chance.random() < HOT_COMMITS else self._tables)

    def commit(self) -> None:
        chance, table = self._chance, self.draw()
        place, first, count = f"{self._lake}/{table.name}", chance.randrange(IDS), chance.randrange(1, ROWS_MAX)
        if not table.keyed:
            self._appended += count
            append(place, events(self._appended, count))
        elif chance.random() < 0.75:
            upsert(place, keyed_rows(list(range(first, min(IDS, first + count))), chance), ["id"])
        else:
            delete(place, f"id >= {first} AND id < {first + count // 2}")


def main(lake: str, tables: str, pace_per_s: str, seed: str) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    chance = random.Random(int(seed))
    planned = [PlannedTable(**each) for each in json.loads(tables)]
    writer, commits, begin_s = TableWriter(lake, planned, chance), 0, time.monotonic()
    while not ended.wait(max(0.0, begin_s + commits / float(pace_per_s) - time.monotonic())):
        writer.commit()
        commits += 1
    sys.stdout.write(f"{commits}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
