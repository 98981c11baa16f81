"""A process that writes transactions to one shard of a changefeed: `python -m tests.fakes.changefeed_program ...`.

Arguments: the feed's URI, etcd's endpoint, the prefix of keys, the shard, a name, a file, the timeout in seconds. Of
each transaction it writes lines to the file: "begins N", "turn N" (within it), "lost N ERROR" where it was not to be,
and "has N AT FIRST" once it is committed: when (seconds of the monotonic clock), and its first ulid as it was
reported before. A row says who wrote it, in which transaction, and its number in that; half of the rows are of a
second append.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from iscp import changefeed
from iscp.model.values.errors import OutcomeUnknown, TemporaryError

ROWS = 10
SCHEMA = pa.schema([("who", pa.string()), ("txn", pa.int64()), ("number", pa.int64())])


def rows_of(who: str, txn: int) -> list[dict[str, object]]:
    return [{"who": who, "txn": txn, "number": number} for number in range(ROWS)]


def main(uri: str, etcd: str, prefix: str, shard: int, who: str, told: Path, timeout_s: float) -> None:
    with (
        told.open("a", buffering=1) as lines,
        changefeed.open(uri, etcd, etcd_prefix=prefix, name=who, timeout_s=timeout_s) as feed,
    ):
        for txn in range(1_000_000):
            lines.write(f"begins {txn}\n")
            rows = rows_of(who, txn)
            while True:
                try:
                    with feed.transaction(shard) as transaction:
                        lines.write(f"turn {txn}\n")
                        first = transaction.append(rows[: ROWS // 2]).first
                        transaction.append(list(reversed(rows[ROWS // 2 :])), order_by="number")
                    break
                except OutcomeUnknown:
                    raise
                except TemporaryError as error:
                    lines.write(f"lost {txn} {type(error).__name__}\n")
            lines.write(f"has {txn} {time.monotonic()} {first}\n")


if __name__ == "__main__":
    uri, etcd, prefix, shard, who, told, timeout_s = sys.argv[1:]
    main(uri, etcd, prefix, int(shard), who, Path(told), float(timeout_s))
