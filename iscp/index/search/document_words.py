"""How often the words of a query are in documents, and where: for many documents at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]


class DocumentWords:
    """The words of a column of several documents, of those words that a query has.

    `texts` has the words of each document as they are stored. A document without words has length 0.
    """

    def __init__(self, texts: pa.Array, words: Sequence[str]) -> None:
        self._places = {word: place for place, word in enumerate(words)}
        lists = pc.split_pattern(pc.utf8_slice_codeunits(texts, 1, -1), " ")
        self.lengths: Numbers = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
        self.lengths = self.lengths.astype(np.int64)
        found = pc.index_in(lists.flatten(), value_set=pa.array(words, pa.string()))
        self._codes = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        self._rows = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False).astype(np.int64)
        there = self._codes >= 0
        cells = self._rows[there] * len(words) + self._codes[there]
        self._counts = np.bincount(cells, minlength=len(texts) * len(words)).reshape(len(texts), len(words))

    def frequencies(self, word: str) -> Numbers:
        """Return how often each document has the word."""
        return self._counts[:, self._places[word]]

    def positions(self, row: int) -> Mapping[str, Sequence[int]]:
        """Return where each word is in a document."""
        begin = int(self._begins[row])
        codes = self._codes[begin : begin + int(self.lengths[row])]
        found: defaultdict[str, list[int]] = defaultdict(list)
        for at in np.flatnonzero(codes >= 0).tolist():
            found[self._words[int(codes[at])]].append(at)
        return found

    @cached_property
    def _begins(self) -> Numbers:
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def _words(self) -> list[str]:
        return list(self._places)


def having_any(texts: pa.StringArray, words: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which of several documents have one of the words.

    All texts are one run of bytes, in which Python finds a word some ten times as fast as Arrow does in each of them.
    Words of two texts are never taken for one: each text begins and ends with a blank.
    """
    found = np.zeros(len(texts), np.bool_)
    _, offsets, data = texts.buffers()
    if data is None:
        return found
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])).to_pybytes()
    for word in words:
        sought = f" {word} ".encode()
        places = []
        at = content.find(sought)
        while at >= 0:
            places.append(at)
            at = content.find(sought, at + len(sought) - 1)
        found[np.searchsorted(bounds, np.array(places, np.int64) + bounds[0], side="right") - 1] = True
    return found
