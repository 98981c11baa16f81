"""Removes what no reader of an index reads any more: old versions, and files of iscp's own that none of the rest names.

A reader may read what was the newest version when it began, however old that version was then. So how long a version is
kept counts from the commit after it, not from its own.

Lance removes its own files with the versions that name them, and those that no version has ever named (a killed
writer's) when they are a week old: none that is younger, which a writer may be about to commit.

What a build has staged is named by no version until it is published, which may take days. So nothing that was written
since the begin of a build goes while its mark is there; and Lance, which knows nothing of builds, removes nothing at
all once one is so old that its files could be a week old.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.dataset_names import BUILD_BEGUN, BUILDS, VERSIONS
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.core.values.errors import InvalidRequest
from iscp.index.lance.index_store import OpenIndex, open_index
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.segments import SEGMENT_PREFIX, segments_of, statistics_name
from iscp.index.lance.word_counts import COUNTS_PREFIX, FOLDER, KEYS_PREFIX
from iscp.index.maintenance.index_shape import version_numbers

if TYPE_CHECKING:
    from iscp.ports.system import Failpoints

IN_FLIGHT_S = 3600.0
"""Seconds for which a file that no version names is left alone: its writer may be about to commit it."""

_DAY_S = 86_400.0

UNVERIFIED_S = 7 * _DAY_S
"""Seconds after which Lance removes a file that no version has named."""

BUILD_S = 30 * _DAY_S
"""Seconds for which a build keeps what it has staged; one that is older was left behind."""

_EVER = timedelta(days=36_500)

MARKS_MAX = 1_000_000
"""Files of builds that are listed."""


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """A clean-up has removed so many versions, and so many files of iscp's own."""

    versions: int
    files: int


def clean_up(at: OpenIndex, keep_s: float, failpoints: Failpoints, in_flight_s: float = IN_FLIGHT_S) -> CleanedUp:
    """Remove versions with which no search has begun for `keep_s` seconds, and the files that only they name.

    Raises StorageError.
    """
    unread: list[int] = []
    builds_since_s = _builds_since_s(at.root)
    if builds_since_s is None or time.time() - builds_since_s < UNVERIFIED_S - _DAY_S:
        unread = _unread_versions(at, keep_s)
        with lance_faults(f"clean up {at.root}"):
            if unread:
                at.dataset.cleanup_old_versions(versions=unread, error_if_tagged_old_versions=False)
            else:  # what killed writers have left
                at.dataset.cleanup_old_versions(older_than=_EVER)
    failpoints.reach("maintain.clean-up.versions")
    return CleanedUp(len(unread), _remove_files(at.root, in_flight_s, builds_since_s))


def _unread_versions(at: OpenIndex, keep_s: float) -> list[int]:
    """Return the versions before the one with which searches began `keep_s` seconds ago."""
    manifests = version_numbers(at.root)
    numbers = sorted(number for number in manifests if number <= at.version)

    def written_ns(number: int) -> int:
        found = files.stamp(f"{at.root}/{VERSIONS}/{manifests[number]}")
        return found[1] if found else 0  # another clean-up has removed it meanwhile

    with storage_faults(f"clean up {at.root}"):
        place = bisect_right(numbers, time.time_ns() - int(keep_s * 1e9), key=written_ns) - 1
    if place <= 0:
        return []
    newest = numbers[place]
    try:
        head = at.head if newest == at.version else open_index(at.root, newest).head
    except InvalidRequest:  # another clean-up was first
        return []
    # While a commit of the source is applied in steps, searches begin with the version before the first of them.
    return [number for number in numbers if number < (head.whole or newest)]


def _builds_since_s(root: str) -> float | None:
    """Return since when (Unix seconds) there are builds whose rows may still be published; None: there are none."""
    builds = f"{root}/{BUILDS}"
    with storage_faults(f"list {builds}"):
        marks = (each for each in files.names_below(builds, MARKS_MAX) if each.endswith(f"/{BUILD_BEGUN}"))
        begun = [stamp[1] / 1e9 for stamp in (files.stamp(f"{builds}/{each}") for each in marks) if stamp]
    return min((each for each in begun if time.time() - each < BUILD_S), default=None)


def _remove_files(root: str, in_flight_s: float, builds_since_s: float | None) -> int:
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
        if builds_since_s is not None:
            bound = min(bound, int((builds_since_s - in_flight_s) * 1e9))
        named: set[str] = set()
        try:
            for version in (oldest, None):
                named |= _named(open_index(root, version))
        except InvalidRequest:  # another clean-up has removed the oldest meanwhile, and goes on with the files
            return 0
        removed = 0
        for name in files.names(f"{root}/{FOLDER}"):
            path = f"{root}/{FOLDER}/{name}"
            if name in named or not name.startswith((COUNTS_PREFIX, SEGMENT_PREFIX, KEYS_PREFIX)):
                continue
            found = files.stamp(path)
            if found and found[1] < bound:
                files.remove(path)
                removed += 1
        return removed


def _named(at: OpenIndex) -> set[str]:
    return {*at.head.count_files, *(statistics_name(each.uuid) for each in segments_of(at.dataset))}
