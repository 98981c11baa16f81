"""The shape and the figures of an index, which maintenance reads without reading rows; and the removal of old versions
and files that no reader needs any more.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from iscp.index.lance.index_columns import KEY_INDEX, VECTOR, VECTOR_INDEX, words_index, words_number
from iscp.index.lance.index_store import (
    SEGMENT_PREFIX,
    OpenIndex,
    Segment,
    open_index,
    segment_statistics,
    segments_of,
    statistics_name,
    vector_kind,
)
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.word_counts import COUNTS_PREFIX, FOLDER, KEYS_PREFIX, file_sizes
from iscp.index.model.definition_parsing import definition_from_json
from iscp.index.model.index_definition import (
    KEY_ROWS_MIN,
    TEXT_ROWS_MIN,
    VECTOR_ROWS_MIN,
    GroupShape,
    IndexShape,
    PartShape,
    SegmentShape,
)
from iscp.model.values.errors import InvalidRequest
from iscp.storage import files
from iscp.storage.delta_errors import storage_faults
from iscp.storage.locations import BUILD_BEGUN, BUILDS, VERSIONS

if TYPE_CHECKING:
    from iscp.ports.system import Failpoints


# --- the shape --------------------------------------------------------------------------------------------------------
# What the maintenance of an index has to know.

_MANIFEST = re.compile(r"(\d+)\.manifest")
_FRAGMENT_BITS = 32


@dataclass(frozen=True, slots=True)
class _Fragment:
    rows: int
    dead: int


def read_shape(at: OpenIndex, keep_s: float, now_s: float) -> IndexShape:
    """Return the shape of an index, whose versions are kept for `keep_s` seconds, at a Unix time.

    The fragment with the head alone is no part of it: each commit writes another. Raises StorageError.
    """
    segments = segments_of(at.dataset)
    fragments = fragments_of(at)
    parts = tuple(_part(at, name, rows, least, segments, fragments) for name, rows, least in _names(at))
    versions, until_s = _versions(at.root, at.version)
    return IndexShape(
        parts=parts,
        groups=_groups(segments, fragments),
        count_files=file_sizes(at.root, at.head.count_files),
        versions=versions,
        oldest_s=max(0.0, now_s - until_s),
        keep_s=keep_s,
        between=bool(at.head.whole),
        vector=next((part for part in parts if part.name == VECTOR_INDEX), None),
        calibrated_rows=at.head.calibrated_rows,
    )


def fragments_of(at: OpenIndex) -> dict[int, _Fragment]:
    """Return the rows of each fragment, but for one that has nothing but the head."""
    with lance_faults(f"read {at.root}"):
        head = at.head_address >> _FRAGMENT_BITS
        return {
            each.fragment_id: _Fragment(each.physical_rows, each.num_deletions)
            for each in at.dataset.get_fragments()
            if each.fragment_id != head or each.physical_rows - each.num_deletions > 1
        }


def version_numbers(root: str) -> dict[int, str]:
    """Return the versions of the dataset at `root` that are there, with the names of their manifests."""
    with storage_faults(f"list {root}/{VERSIONS}"):
        names = files.names(f"{root}/{VERSIONS}")
    found = {}
    for name in names:
        if match := _MANIFEST.fullmatch(name):
            number = int(match[1])
            # Manifests are named so that the newest is listed first.
            found[2**64 - 1 - number if number >= 2**63 else number] = name
    return found


def _names(at: OpenIndex) -> list[tuple[str, int, int]]:
    """Return the names of the parts, the rows of each, and from how many on it is indexed."""
    head = at.head
    texts = [(words_index(number), each.rows, TEXT_ROWS_MIN) for number, each in enumerate(head.totals)]
    vectors = [(VECTOR_INDEX, head.vectors, VECTOR_ROWS_MIN)] if VECTOR in at.dataset.schema.names else []
    return [(KEY_INDEX, head.rows, KEY_ROWS_MIN), *texts, *vectors]


def _part(
    at: OpenIndex, name: str, rows: int, least: int, segments: list[Segment], fragments: dict[int, _Fragment]
) -> PartShape:
    own = [each for each in segments if each.name == name]
    covered = {number for each in own for number in each.fragments}
    fresh = [each for number, each in fragments.items() if number not in covered]
    shapes = tuple(
        SegmentShape(
            uuid=each.uuid,
            rows=sum(fragments[number].rows for number in each.fragments if number in fragments),
            stated=words_number(name) is None or segment_statistics(at.root, each.uuid) is not None,
        )
        for each in own
    )
    return PartShape(
        name=name,
        rows=rows,
        rows_min=least,
        segments=shapes,
        fresh_rows=sum(each.rows - each.dead for each in fresh),
        fresh_fragments=len(fresh),
        outdated=name == VECTOR_INDEX and any(each.kind != vector_kind(at) for each in own),
    )


def _groups(segments: list[Segment], fragments: dict[int, _Fragment]) -> tuple[GroupShape, ...]:
    by_cover: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number in fragments:
        by_cover[tuple(sorted(each.uuid for each in segments if number in each.fragments))].append(number)
    return tuple(
        GroupShape(
            fragments=tuple(numbers),
            rows=sum(fragments[each].rows for each in numbers),
            dead=sum(fragments[each].dead for each in numbers),
            covered=bool(cover),
        )
        for cover, numbers in sorted(by_cover.items())
    )


def _versions(root: str, newest: int) -> tuple[int, float]:
    """Return how many versions there are up to the newest, and until which Unix time (seconds) the oldest of them was
    the newest: for a single one, since when.
    """
    numbers = {number: name for number, name in version_numbers(root).items() if number <= newest}
    if not numbers:
        return 1, float("inf")
    with storage_faults(f"read {root}/{VERSIONS}"):
        found = files.stamp(f"{root}/{VERSIONS}/{numbers[sorted(numbers)[:2][-1]]}")
    return len(numbers), found[1] / 1e9 if found else float("inf")


# --- figures ----------------------------------------------------------------------------------------------------------
# How many rows an index has of each sort, and how far its upkeep has come.


def figures_of(at: OpenIndex, now_s: float) -> dict[str, float]:
    """Return the figures of an index at a Unix time.

    There are `rows` of the source, of which `faults` cannot be indexed. Of an index of vectors: so many rows have one
    (`vectors`), and so many have none and no fault (`without_vector`). Of each part, named `key`, `vector` or
    `text.COLUMN`: its `segments`, and the rows that none of these has (`fresh_rows`). Deleted rows that are still in
    files (`dead_rows`), the files of rows (`fragments`), the dataset's `versions`, and the `bytes` of the newest.
    Raises StorageError, and PermanentError for an index of a newer release.
    """
    head, shape, definition = at.head, read_shape(at, 0.0, now_s), definition_from_json(at.head.definition)
    texts = definition.text_names()
    found: dict[str, float] = {"rows": head.rows, "faults": head.faults}
    if definition.vector is not None:
        found |= {"vectors": head.vectors, "without_vector": head.rows - head.vectors - head.faults}
    for part in shape.parts:
        number = words_number(part.name)
        name = part.name if number is None else f"text.{texts[number]}"
        found |= {f"{name}.segments": len(part.segments), f"{name}.fresh_rows": part.fresh_rows}
    found["dead_rows"] = sum(group.dead for group in shape.groups)
    found["fragments"] = sum(len(group.fragments) for group in shape.groups)
    return {**found, "versions": shape.versions, "bytes": _bytes(at)}


def _bytes(at: OpenIndex) -> int:
    """Return the bytes of files that the version names: rows, indexes and counts of words."""
    with lance_faults(f"read {at.root}"):
        fragments = [each.metadata for each in at.dataset.get_fragments()]
        indexes = at.dataset.describe_indices()
    sizes = [file.file_size_bytes or 0 for each in fragments for file in each.files]
    sizes += [segment.size_bytes or 0 for each in indexes for segment in each.segments]
    return sum(map(int, sizes)) + sum(file_sizes(at.root, at.head.count_files))


# --- removal ----------------------------------------------------------------------------------------------------------
# What no reader reads any more is removed: old versions, and files of iscp's own that no other version names. A reader
# may read what was the newest version when it began, however old that version was then. So the time for which a version
# is kept counts from the commit after it, not from its own.
#
# Lance removes its own files with the versions that name them. Files that no version has ever named (a killed writer's)
# it removes when they are a week old: none that is younger, which a writer may be about to commit.
#
# What a build has staged is named by no version until it is published, which may take days. So nothing that was written
# since the begin of a build goes while the build's mark is there. Lance, which knows nothing of builds, removes nothing
# at all once a build is so old that its files could be a week old.

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
