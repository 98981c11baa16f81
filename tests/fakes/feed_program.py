"""A process that appends to one shard of a feed until it is ended: `python -m tests.fakes.feed_program ...`.

Arguments: the feed's URI, the shard, a name, a file. For each append it writes a line to the file before ("begins N"),
whenever another was first ("lost N") and once its commit is confirmed ("has N"). A row says who appended it,
in which append, and its number in that.
"""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

import pyarrow as pa

from iscp.changefeed.model.ulid import DRAWN_BYTES, begin
from iscp.changefeed.table.feed_table import FeedTable
from iscp.changefeed.table.file_writer import FeedRows
from iscp.model.values.errors import Conflict
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

ROWS = 20
SCHEMA = pa.schema([("who", pa.string()), ("append", pa.int64()), ("number", pa.int64())])


def rows_of(who: str, append: int) -> pa.Table:
    return pa.table([[who] * ROWS, [append] * ROWS, list(range(ROWS))], schema=SCHEMA)


def main(uri: str, shard: int, who: str, told: Path) -> None:
    clock = SystemClock()
    feed = FeedTable(uri, clock, EnvironmentFailpoints(os.environ))
    operations = pa.array(["insert"] * ROWS)
    with told.open("a", buffering=1) as lines:
        for append in range(1_000_000):
            lines.write(f"begins {append}\n")
            while True:
                seen = feed.state(shard)
                first = begin(seen.place, int(clock.now_s() * 1000), secrets.token_bytes(DRAWN_BYTES))
                try:
                    feed.append(shard, seen, first, FeedRows(rows_of(who, append), operations))
                    break
                except Conflict:
                    lines.write(f"lost {append}\n")
            lines.write(f"has {append}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
