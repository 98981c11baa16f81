"""Removes what no reader of an index reads any more: old versions, and files of iscp's own that none of the rest names.

Lance removes its own files with the versions that name them, and those that no version has ever named (a killed
writer's) when they are a week old: none that is younger, which a writer may be about to commit.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.core.values.errors import InvalidRequest
from iscp.index.lance.index_store import OpenIndex, open_index
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.segments import SEGMENT_PREFIX, segments_of, statistics_name
from iscp.index.lance.word_counts import COUNTS_PREFIX, FOLDER
from iscp.index.maintenance.index_shape import VERSIONS, version_numbers

if TYPE_CHECKING:
    from iscp.ports.system import Failpoints

IN_FLIGHT_S = 3600.0
"""Seconds for which a file that no version names is left alone: its writer may be about to commit it."""


def clean_up(at: OpenIndex, keep_s: float, failpoints: Failpoints, in_flight_s: float = IN_FLIGHT_S) -> int:
    """Remove versions older than `keep_s` seconds and the files that only they name; return how many files of iscp's
    own went. Raises StorageError.
    """
    with lance_faults(f"clean up {at.root}"):
        at.dataset.cleanup_old_versions(older_than=timedelta(seconds=keep_s))
    failpoints.reach("maintain.clean-up.versions")
    return _remove_files(at.root, in_flight_s)


def _remove_files(root: str, in_flight_s: float) -> int:
    """Remove files that no version names.

    A file is named by versions that follow on each other. So one that is older than the oldest version, and is named by
    neither this nor the newest, is named by none between.
    """
    manifests = version_numbers(root)
    if not manifests:
        return 0
    oldest = min(manifests)
    with storage_faults(f"clean up {root}"):
        stamp = files.stamp(f"{root}/{VERSIONS}/{manifests[oldest]}")
        if not stamp:
            return 0
        bound = stamp[1] - int(in_flight_s * 1e9)
        named: set[str] = set()
        try:
            for version in (oldest, None):
                named |= _named(open_index(root, version))
        except InvalidRequest:  # another clean-up has removed the oldest meanwhile, and goes on with the files
            return 0
        removed = 0
        for name in files.names(f"{root}/{FOLDER}"):
            path = f"{root}/{FOLDER}/{name}"
            if name in named or not name.startswith((COUNTS_PREFIX, SEGMENT_PREFIX)):
                continue
            found = files.stamp(path)
            if found and found[1] < bound:
                files.remove(path)
                removed += 1
        return removed


def _named(at: OpenIndex) -> set[str]:
    return {*at.head.count_files, *(statistics_name(each.uuid) for each in segments_of(at.dataset))}
