"""A process that commits batches of rows one after another: `python -m benchmarks.feed_writer ...`, for `changefeed`.

Arguments: `feed` or `plain`, the table's URI, etcd's endpoint, the shard, rows of a batch. It says "ready", begins at
"go" on its input and ends at the end of that. A commit is reported as "has NS" (of the monotonic clock), one that was
not to be as "lost ERROR". At SIGUSR1 it says "frozen" within its next transaction, and stops itself (SIGSTOP).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from iscp import changefeed
from iscp.cli.demo import lake
from iscp.model.values.errors import TemporaryError


def batch(rows: int) -> pa.Table:
    """Of the year's flights, again from the first where there are not enough."""
    year = pa.concat_tables([day.arrived for day in lake.load(days=30).days])
    return pa.concat_tables([year] * (rows // len(year) + 1)).slice(0, rows).combine_chunks()


def plain(uri: str, rows: pa.Table) -> Callable[[], None]:
    table = DeltaTable(uri)

    def commit() -> None:
        write_deltalake(table, rows, mode="append")

    return commit


def feed(uri: str, etcd: str, shard: int, rows: pa.Table) -> Callable[[], None]:
    opened, to_freeze = changefeed.open(uri, etcd), threading.Event()

    def asked(number: int, frame: FrameType | None) -> None:
        to_freeze.set()

    def commit() -> None:
        with opened.transaction(shard) as transaction:
            transaction.append(rows)
            if to_freeze.is_set():
                to_freeze.clear()
                print("frozen", flush=True)
                os.kill(os.getpid(), signal.SIGSTOP)

    signal.signal(signal.SIGUSR1, asked)
    return commit


def main(kind: str, uri: str, etcd: str, shard: int, rows: int) -> None:
    given = batch(rows)
    commit = plain(uri, given) if kind == "plain" else feed(uri, etcd, shard, given)
    over = threading.Event()
    print("ready", flush=True)
    sys.stdin.readline()

    def await_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=await_end, daemon=True).start()
    while not over.is_set():
        try:
            commit()
            print(f"has {time.monotonic_ns()}", flush=True)
        except (TemporaryError, DeltaError) as error:
            print(f"lost {type(error).__name__}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
