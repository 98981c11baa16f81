"""A process that follows and searches an index on S3 of its own, as a node does; then somebody changes bytes in it.

`URI FOLDER`: of the files below this folder of the index the largest is changed so that it ends whatever reads it. Each
line of output is JSON: how many processes for trials there were, and what came of a search and of a commit.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence

from iscp.index.maintenance.index_maintenance import MaintenanceLimits, maintain
from iscp.index.model.index_definition import Upkeep
from iscp.index.search.search_library import search
from iscp.model.values.errors import IscpError
from iscp.storage import files
from iscp.storage.dataset_manifest import guard_dataset
from iscp.storage.dataset_trial import try_datasets
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.hostile_index import deadly, make_index
from tests.fakes.hostile_index_program import DIMENSION
from tests.integration.index.search.small_index import SmallIndex

REPORTS = 4
"""Lines of output before somebody changes a file."""


def main(uri: str, folder: str) -> None:
    try_datasets(None)
    index = make_index(uri)
    report(index)
    report(index, range(300, 1_800))
    limits, failpoints = MaintenanceLimits(keep_s=0.0, in_flight_s=0.0), EnvironmentFailpoints({})
    assert Upkeep.COMPACT in maintain(index.store, limits, SystemClock(), failpoints, 60.0).actions
    report(index)
    index.cover()
    report(index)
    largest = largest_file(uri, folder)
    content, _ = files.read(largest)
    files.replace(largest, deadly(content))
    for _ in range(2):
        report(index)
    files.replace(largest, content)
    report(index)


def largest_file(uri: str, folder: str) -> str:
    """Return the largest file of the newest version in a folder, or below it."""
    guarded = guard_dataset(uri)
    assert guarded is not None
    there = files.first_stamps(f"{uri}/{folder}", 1_000)
    named = [each for each in there if f"{folder}/{each}".startswith(guarded.files)]
    return f"{uri}/{folder}/{max(named, key=lambda each: there[each][-1])}"


def report(index: SmallIndex, removed: Sequence[int] = ()) -> None:
    """Search and commit, and print what came of it."""
    row = {"id": 1, "title": "red", "body": "blue", "v": [0.5] * DIMENSION}
    searched = said(lambda: search(index.uri, "red", vector=[0.5] * DIMENSION, k=5))
    committed = said(lambda: index.commit([row], removed))
    trials = sum(each.name == "iscp-dataset-trial" for each in threading.enumerate())
    print(json.dumps([trials, searched, committed]), flush=True)  # noqa: T201


def said(do: Callable[[], object]) -> str:
    try:
        do()
    except IscpError as error:
        return error.message
    return "done"


if __name__ == "__main__":
    main(*sys.argv[1:])
