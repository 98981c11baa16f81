"""The words of live documents: those with a prefix, and those that are near another word."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from rapidfuzz.distance import OSA

from iscp.index.lance.word_counts import LiveCounts


class LiveVocabulary:
    """The words of an index's text columns (port Vocabulary). `texts` are the columns by their numbers."""

    def __init__(self, counts: LiveCounts, texts: Sequence[str]) -> None:
        self._counts = counts
        self._numbers = {name: number for number, name in enumerate(texts)}

    def with_prefix(self, column: str, prefix: str, most: int) -> Sequence[str]:
        return self._counts.with_prefix(self._numbers[column], prefix, most)

    def near(self, column: str, term: str, distance: int, most: int) -> Sequence[str]:
        """Return the nearest words, of equally near ones those of most documents first.

        Two neighbours that have changed places are one change (the restricted distance of Damerau and Levenshtein).
        """
        number = self._numbers[column]
        found: dict[str, int] = {}
        for file in self._counts.files:
            for word in _of_length(file.words(number), len(term), distance):
                if word not in found:
                    found[word] = OSA.distance(term, word, score_cutoff=distance)
        live = [
            (changes, -rows, word)
            for word, changes in found.items()
            if changes <= distance and (rows := self._counts.rows(number, word)) > 0
        ]
        return [word for _, _, word in sorted(live)[:most]]


def _of_length(words: pa.StringArray, length: int, distance: int) -> list[str]:
    sizes = pc.utf8_length(words)
    near = pc.and_(pc.greater_equal(sizes, length - distance), pc.less_equal(sizes, length + distance))
    return list(words.filter(near).to_pylist())
