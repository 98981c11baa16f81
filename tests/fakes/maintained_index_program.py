"""A process that writes to an index, or maintains it, until it is done or dies at a failpoint (`ISCP_FAILPOINTS`).

`write URI SEED COMMITS ROWS KEYS DIMENSION` commits random changes; `maintain URI` does what is due once;
`maintain-until URI FILE` goes on until the file is there. Each prints a line of JSON at its end.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from pathlib import Path

from iscp.index.lance.index_store import IndexStore
from iscp.index.maintenance.index_maintenance import MaintenanceDone, MaintenanceLimits, maintain
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.maintained_index import MaintainedIndex

BUDGET_S = 60.0


def _maintain(uri: str, keep_s: float) -> MaintenanceDone:
    failpoints = EnvironmentFailpoints()
    limits = MaintenanceLimits(keep_s=keep_s, in_flight_s=3600.0)
    return maintain(IndexStore(uri, failpoints), limits, SystemClock(), failpoints, BUDGET_S)


def main(what: str, uri: str, *rest: str) -> None:
    if what == "write":
        seed, commits, rows, keys, dimension = map(int, rest)
        index, chance = MaintainedIndex(uri, dimension), random.Random(seed)
        for _ in range(commits):
            index.change_randomly(chance, rows, keys)
        print(json.dumps({"commits": index.commits}))  # noqa: T201
    elif what == "maintain":
        print(json.dumps([each.value for each in _maintain(uri, 0.0).actions]))  # noqa: T201
    else:
        done: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        end = Path(rest[0])
        while not end.exists():
            found = _maintain(uri, 30.0)
            done.update(each.value for each in found.actions)
            lost.update(each.value for each in found.lost)
        print(json.dumps({"done": done, "lost": lost}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
