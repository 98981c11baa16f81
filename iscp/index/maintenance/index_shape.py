"""Reads the shape of an index: what its maintenance has to know, without reading rows."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp.adapters.delta.storage import files
from iscp.adapters.delta.storage.dataset_names import VERSIONS
from iscp.adapters.delta.storage.delta_errors import storage_faults
from iscp.index.lance.index_columns import VECTOR
from iscp.index.lance.index_names import KEY_INDEX, VECTOR_INDEX, words_index, words_number
from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.segments import Segment, segment_statistics, segments_of, vector_kind
from iscp.index.lance.word_counts import file_sizes
from iscp.index.model.maintenance_policy import (
    KEY_ROWS_MIN,
    TEXT_ROWS_MIN,
    VECTOR_ROWS_MIN,
    GroupShape,
    IndexShape,
    PartShape,
    SegmentShape,
)

if TYPE_CHECKING:
    from iscp.index.lance.index_store import OpenIndex

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
