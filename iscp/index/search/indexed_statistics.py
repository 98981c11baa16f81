"""The rows that Lance's index on words has, and the statistics by which it ranks them.

Lance counts all rows that were ever put into the segments of an index, also those that are gone. What these are is
written beside each segment when it is made. Without that nothing bounds the scores of rows that Lance leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iscp.index.lance.lance_access import lance_faults
from iscp.index.lance.segments import SegmentStatistics
from iscp.index.model.bm25 import Corpus
from iscp.index.search.document_scores import Statistics
from iscp.index.search.live_vocabulary import rows_with

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


def indexed_statistics(
    root: str, segments: Sequence[str], number: int, words: Sequence[str], read: ReadSegment
) -> Statistics | None:
    """Return the sums over the segments of the index of the text column `number`; None if one segment has not said."""
    found = [read(root, each) for each in segments]
    known = [each for each in found if each is not None]
    if len(known) < len(found) or not known:
        return None
    counts = rows_with([each.counts for each in known], number, words)
    corpus = Corpus(sum(each.rows for each in known), sum(each.words for each in known), counts)
    return Statistics(corpus.average_length, {word: corpus.idf(word) for word in words})
