"""Uses what iscp offers in a process, and again in its fork: `forking_program PLACE SUBJECT ADDRESS`.

The fork prints the class and the words of what it gets, or `fine`, and ends as programs do.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

import iscp
import iscp.aio
import iscp.changefeed
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.model.values.errors import IscpError
from iscp.system.threads import SystemClock

TIMEOUT_S = 2.0


def client_of(place: Path, address: str) -> Callable[[], object]:
    made = iscp.Client(address, timeout_s=TIMEOUT_S)
    return lambda: list(made.jobs())


def new_client_of(place: Path, address: str) -> Callable[[], object]:
    return lambda: client_of(place, address)()


def asyncio_client_of(place: Path, address: str) -> Callable[[], object]:
    async def use() -> None:
        async with iscp.aio.Client(address, timeout_s=TIMEOUT_S) as client:
            await client.jobs()

    return lambda: asyncio.run(use())


def etcd_of(place: Path, address: str) -> Callable[[], object]:
    made = EtcdClient(EtcdSettings((address,), timeout_s=TIMEOUT_S), SystemClock())
    return lambda: made.get("x")


def changefeed_of(place: Path, address: str) -> Callable[[], object]:
    feed = place / "feed"
    if not feed.exists():
        iscp.changefeed.create(str(feed), pa.schema([("id", pa.int64())]))
    made = iscp.changefeed.open(str(feed))
    return lambda: made.read(limit=1)


def search_of(place: Path, address: str) -> Callable[[], object]:
    return lambda: iscp.search(str(place / "index"), "words")


SUBJECTS = {
    "client": client_of,
    "new client": new_client_of,
    "asyncio": asyncio_client_of,
    "etcd": etcd_of,
    "changefeed": changefeed_of,
    "search": search_of,
}


def said(use: Callable[[], object]) -> str:
    try:
        use()
    except IscpError as error:
        return f"{type(error).__name__}: {error}"
    return "fine"


def show(who: str, words: str) -> None:
    sys.stdout.write(f"{who}: {words}\n")
    sys.stdout.flush()


def main(place: Path, subject: str, address: str) -> int:
    use = SUBJECTS[subject](place, address)
    show("parent", said(use))
    child = os.fork()
    if not child:
        began_s = time.monotonic()
        show("child", said(use))
        show("took", f"{time.monotonic() - began_s:.2f}")
        return 0
    status = os.waitpid(child, 0)[1]
    show("parent again", said(use))
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
