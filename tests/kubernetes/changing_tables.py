"""Tables that change all the time, what each must hold, and how long every change waited until its target had it."""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from iscp.cli.demo.lake import differences, lags_s
from iscp.client.admin_client import Client
from iscp.model.values.errors import TemporaryError
from tests.e2e.evidence import assert_in_order, sink_commits
from tests.e2e.harness import read, upsert

JOB = "copy"
NEW_ROWS = 5
CHANGED_ROWS = 3
NOTIFIERS = 4
REGISTRATIONS = 8
"""At once."""
SETTLE_WAIT_S = 240.0


@dataclass
class ChangingTable:
    """A source, its target, and the rows that were written: by id, so that nothing is computed from the source."""

    source: str
    target: str
    chance: random.Random
    rows: dict[int, int] = field(default_factory=dict)
    committed_at_s: dict[int, float] = field(default_factory=dict)

    def create(self) -> None:
        configuration = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self.source, self._changed(), configuration=configuration)
        self.committed_at_s[0] = time.time()

    def change(self) -> None:
        """New rows and changed ones in one commit."""
        version = upsert(self.source, self._changed(), ["id"])
        self.committed_at_s[version] = time.time()

    def check(self) -> None:
        """The target has every row as it was written last, and each commit follows the one before."""
        found = differences(self._table(self.rows), read(self.target))
        assert found.num_rows == 0, f"{self.target}: {found.num_rows} rows differ, as {found.slice(0, 5).to_pylist()}"
        assert_in_order(self.target)

    @property
    def version(self) -> int:
        return max(self.committed_at_s)

    def waits_s(self, from_version: int) -> list[float]:
        """How long each version from `from_version` on waited; all have arrived."""
        commits = sink_commits(self.target)
        reached = [-1, *(each.to for each in commits)]
        arrivals = [(before, each.to, each.at_s) for before, each in zip(reached, commits, strict=False)]
        wanted = {version: at_s for version, at_s in self.committed_at_s.items() if version >= from_version}
        return lags_s(wanted, arrivals)

    def _changed(self) -> pa.Table:
        old = self.chance.sample(sorted(self.rows), min(CHANGED_ROWS, len(self.rows)))
        new = range(len(self.rows), len(self.rows) + NEW_ROWS)
        changed = {each: self.chance.randrange(1_000_000) for each in (*old, *new)}
        self.rows |= changed
        return self._table(changed)

    @staticmethod
    def _table(rows: dict[int, int]) -> pa.Table:
        return pa.table({"id": pa.array(rows, pa.int64()), "value": pa.array(rows.values(), pa.int64())})


class ChangingTables:
    """Several tables of a lake, the first `count` of a kind, which are changed one after the other.

    `pause_s`: between two changes, of whichever tables.
    """

    def __init__(self, lake: Path, kind: str, count: int, pause_s: float) -> None:
        self._pause_s = pause_s
        derived, chances = lake / "derived", [random.Random(number) for number in range(count)]
        self.tables = [
            ChangingTable(str(lake / f"{kind}-{number}"), str(derived / f"{kind}-{number}"), chance)
            for number, chance in enumerate(chances)
        ]
        self._first = [0] * count

    def create(self, client: Client) -> None:
        def add(table: ChangingTable) -> None:
            table.create()
            client.register(table.source, JOB, target=table.target, key=["id"])

        with ThreadPoolExecutor(REGISTRATIONS) as pool:
            list(pool.map(add, self.tables))

    @contextmanager
    def changing(self, client: Client | None = None) -> Iterator[None]:
        """While it is entered the tables are changed, and `client` is notified of each change, where there is one."""
        ended = threading.Event()
        self._first = [each.version + 1 for each in self.tables]
        with ThreadPoolExecutor(NOTIFIERS) as notifiers, ThreadPoolExecutor(1) as changer:
            changing = changer.submit(self._change, ended, client, notifiers)
            try:
                yield
            finally:
                ended.set()
                changing.result()

    def _change(self, ended: threading.Event, client: Client | None, notifiers: ThreadPoolExecutor) -> None:
        for each in itertools.cycle(self.tables):
            if ended.wait(self._pause_s):
                return
            each.change()
            if client is not None:
                notifiers.submit(_notify, client, each.source)

    def settle(self, client: Client) -> str:
        """Wait until every target has every change, and check all; what it came to since they were last changed."""
        for each in self.tables:
            client.wait(each.source, JOB, each.version, timeout_s=SETTLE_WAIT_S)
            each.check()
        pairs = zip(self.tables, self._first, strict=True)
        waits_s = sorted(wait_s for each, first in pairs for wait_s in each.waits_s(first))
        rows = sum(len(each.rows) for each in self.tables)
        waits = f"waits of {statistics.median(waits_s):.2f} s (median) to {waits_s[-1]:.2f} s"
        return f"{len(waits_s)} commits, {waits}; {rows} rows in {len(self.tables)} tables, none lost or doubled"


def _notify(client: Client, source: str) -> None:
    """A writer does not wait for it, and where nobody takes it the table is probed."""
    with suppress(TemporaryError):
        client.notify(source)
