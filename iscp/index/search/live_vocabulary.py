"""The words of live documents: those with a prefix, and those that are near another word."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rapidfuzz.distance import OSA
from rapidfuzz.process import cdist

from iscp.index.lance.word_counts import CountFile, LiveCounts

WORDS_AT_ONCE_LEAST = 32
"""Words from which on their counts are found by one pass over all words, and not each by itself."""


class LiveVocabulary:
    """The words of an index's text columns (port Vocabulary). `texts` are the columns by their numbers."""

    def __init__(self, counts: LiveCounts, texts: Sequence[str]) -> None:
        self._counts = counts
        self._numbers = {name: number for number, name in enumerate(texts)}

    def with_prefix(self, column: str, prefix: str, most: int) -> Sequence[str]:
        number = self._numbers[column]
        parts = []
        for file in self._counts.files:
            words, rows = file.counted(number)
            begin, end = _with_prefix(words, prefix)
            parts.append(pa.table({"word": words[begin:end], "rows": rows[begin:end]}))
        if not parts:
            return []
        summed = pa.concat_tables(parts).group_by("word").aggregate([("rows", "sum")])
        live = summed.filter(pc.greater(summed["rows_sum"], 0))
        order = pc.sort_indices(live, [("rows_sum", "descending"), ("word", "ascending")])[:most]
        return list(live["word"].take(order).to_pylist())

    def near(self, column: str, term: str, distance: int, most: int) -> Sequence[str]:
        """Return the nearest words, of equally near ones those of most documents first.

        Two neighbours that have changed places are one change (the restricted distance of Damerau and Levenshtein).
        """
        number = self._numbers[column]
        found: dict[str, int] = {}
        for file in self._counts.files:
            words = _of_length(file.words(number), len(term), distance)
            changes = cdist([term], words, scorer=OSA.distance, score_cutoff=distance)[0] if words else np.zeros(0)
            found |= {words[at]: int(changes[at]) for at in np.flatnonzero(changes <= distance).tolist()}
        rows = rows_with(self._counts.files, number, list(found))
        live = [(changes, -rows[word], word) for word, changes in found.items() if rows[word] > 0]
        return [word for _, _, word in sorted(live)[:most]]


def rows_with(files: Sequence[CountFile], number: int, words: Sequence[str]) -> dict[str, int]:
    """Return in how many rows each word of the text column `number` is: the sum of several files of counts."""
    if len(words) < WORDS_AT_ONCE_LEAST:
        return {word: sum(file.rows(number, word) for file in files) for word in words}
    sums = np.zeros(len(words), np.int64)
    wanted = pa.array(words, pa.string())
    for file in files:
        known, rows = file.counted(number)
        places = pc.index_in(known, value_set=wanted)
        there = pc.is_valid(places)
        np.add.at(sums, places.filter(there).to_numpy(), rows.filter(there).to_numpy())
    return dict(zip(words, sums.tolist(), strict=True))


def _with_prefix(words: pa.StringArray, prefix: str) -> tuple[int, int]:
    """Return the bounds of those of sorted words that begin with a text."""

    def beginning(at: int) -> str:
        return str(words[at].as_py())[: len(prefix)]

    places = range(len(words))
    return bisect_left(places, prefix, key=beginning), bisect_right(places, prefix, key=beginning)


def _of_length(words: pa.StringArray, length: int, distance: int) -> list[str]:
    sizes = pc.utf8_length(words)
    near = pc.and_(pc.greater_equal(sizes, length - distance), pc.less_equal(sizes, length + distance))
    return list(words.filter(near).to_pylist())
