"""A process that does to indexes what a node does: it opens, searches, changes and maintains them (`MEGABYTES URI …`).

It may have so much memory beyond what it starts with. Each step prints whether it was done, or refused by an error of
iscp; the last line says that all were tried. Anything else ends the process.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path

from iscp.index.lance.index_store import IndexStore
from iscp.index.lance.index_transaction import KEYS_IN_FILTER_MAX
from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.search.search_library import search
from iscp.model.values.errors import IscpError
from iscp.storage.dataset_manifest import VersionProbe
from iscp.storage.dataset_trial import try_datasets
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock

END = "all was tried"
DIMENSION = 16


def main(megabytes: str, *uris: str) -> None:
    limit_memory(int(megabytes))
    try_datasets(None)
    for uri in uris:
        use(uri)
    print(END, flush=True)  # noqa: T201


def use(uri: str) -> None:
    failpoints = EnvironmentFailpoints({})
    store = IndexStore(uri, failpoints)
    vector = [0.5] * DIMENSION

    def change() -> None:
        commit = store.begin()
        commit.remove(commit.seek(["1", "2", "100"]))
        commit.commit("prod")

    steps: dict[str, Callable[[], object]] = {
        "probe": lambda: VersionProbe().first_probe(uri),
        "open": lambda: store.open().counts,
        "text": lambda: search(uri, "red", k=5, explain=True),
        "words": lambda: search(uri, '"red blue" OR gr* OR blu~1', k=50, filter="id < 900"),
        "vector": lambda: search(uri, vector=vector, k=5),
        "both": lambda: search(uri, "green", vector=vector, k=5, filter="id > 10"),
        "commit": change,
        "maintain": lambda: maintain(
            store, MaintenanceLimits(keep_s=0.0, in_flight_s=0.0), SystemClock(), failpoints, 60.0
        ),
        "read": lambda: store.begin().seek(["1"] * (KEYS_IN_FILTER_MAX + 1)),
    }
    for name, step in steps.items():
        try:
            step()
            print(json.dumps([name, "done", ""]), flush=True)  # noqa: T201
        except IscpError as error:
            print(json.dumps([name, type(error).__name__, error.message]), flush=True)  # noqa: T201


def limit_memory(megabytes: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if megabytes:
        resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 1024**2,) * 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
