"""Which rows Lance's index on words has, and the statistics by which it ranks them.

Lance counts all rows that were ever put into the segments of an index, also those that are gone. What these are is
written beside each segment when it is made. Without that nothing bounds the scores of rows that Lance leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.segments import SegmentStatistics
from iscp.index.search.document_scores import Statistics

if TYPE_CHECKING:
    from lance import LanceDataset


ReadSegment = Callable[[str, str], SegmentStatistics | None]
"""A function of a dataset's place and a segment's UUID that returns its counts, or None where they were not written."""


@dataclass(frozen=True, slots=True)
class IndexedPart:
    """The fragments whose rows the indexes on some columns of words all have, and those of these columns' segments."""

    fragments: frozenset[int]
    segments: Mapping[str, Sequence[str]]


def indexed_part(dataset: LanceDataset, columns: Mapping[str, str]) -> IndexedPart:
    """Return what is indexed; `columns` are columns of words by the names of their indexes."""
    covered: dict[str, set[int]] = {index: set() for index in columns}
    segments: dict[str, list[str]] = {index: [] for index in columns}
    with lance_faults(f"list the indexes of {dataset.uri}"):
        for described in dataset.describe_indices():
            if described.name in covered:
                for segment in described.segments:
                    covered[described.name].update(segment.fragment_ids)
                    segments[described.name].append(str(segment.uuid))
        present = {fragment.fragment_id for fragment in dataset.get_fragments()}
    return IndexedPart(
        frozenset(present.intersection(*covered.values())), {columns[index]: segments[index] for index in columns}
    )


@dataclass(frozen=True, slots=True)
class IndexedStatistics:
    """What Lance ranks a column's words by: `documents`, their `words` in all, and how many have each word."""

    documents: int
    words: int
    counts: Mapping[str, int]

    @property
    def average_length(self) -> float:
        return self.words / self.documents if self.documents else 0.0

    def statistics(self) -> Statistics:
        return Statistics(self.average_length, {word: self.idf(word) for word in self.counts})

    def idf(self, word: str) -> float:
        count = self.counts[word]
        return math.log(1 + (self.documents - count + 0.5) / (count + 0.5))


def indexed_statistics(
    root: str, segments: Sequence[str], number: int, words: Sequence[str], read: ReadSegment
) -> IndexedStatistics | None:
    """Return the sums over the segments of the index of the text column `number`; None if one segment has not said."""
    found = [read(root, each) for each in segments]
    known = [each for each in found if each is not None]
    if len(known) < len(found) or not known:
        return None
    counts = {word: sum(each.counts.rows(number, word) for each in known) for word in words}
    return IndexedStatistics(sum(each.rows for each in known), sum(each.words for each in known), counts)
