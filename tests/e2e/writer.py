"""A process that keeps changing tables, as an application would: `python -m tests.e2e.writer SEED ORDERS EVENTS`.

To `orders` (id, state, amount) it inserts, updates and deletes; to `events` (at, text) it only appends. It ends by
SIGTERM, between two commits.
"""

from __future__ import annotations

import random
import signal
import sys
import threading

import pyarrow as pa

from tests.e2e.harness import append, delete, upsert

STATES = ("open", "paid", "gone")
PAUSE_MAX_S = 2.0


def orders(ids: list[int], chance: random.Random) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "state": [chance.choice(STATES) for _ in ids],
            "amount": pa.array([chance.randrange(1_000) for _ in ids], pa.int64()),
        }
    )


def events(first: int, count: int) -> pa.Table:
    return pa.table({"at": pa.array(range(first, first + count), pa.int64()), "text": ["x"] * count})


def main(seed: int, orders_uri: str, events_uri: str) -> None:
    chance, ended = random.Random(seed), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    turn = 0
    while not ended.wait(PAUSE_MAX_S * chance.random()):
        turn += 1
        first = chance.randrange(400)
        match chance.randrange(4):
            case 0 | 1:
                upsert(orders_uri, orders(list(range(first, first + chance.randrange(1, 40))), chance), ["id"])
            case 2:
                delete(orders_uri, f"id >= {first} AND id < {first + chance.randrange(1, 20)}")
            case _:
                append(events_uri, events(turn * 100, chance.randrange(1, 20)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
