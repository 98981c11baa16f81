"""The words of a query in documents: how often they are there, and where, for many documents at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.lance.word_counts import place_of

Numbers = npt.NDArray[np.int64]


Codes = npt.NDArray[np.int32]
_NO_CODE = -1


class DocumentWords:
    """The words of a column of several documents, of those words that a query has.

    `codes` has the number of each word of each document among `words`, -1 for another word; a document has so many of
    them as `lengths` says.
    """

    def __init__(self, codes: Codes, lengths: Numbers, words: Sequence[str]) -> None:
        self._places = {word: place for place, word in enumerate(words)}
        self._codes = codes
        self.lengths = lengths
        self._ends: Numbers = np.cumsum(lengths)
        there = np.flatnonzero(codes != _NO_CODE)
        rows = np.searchsorted(self._ends, there, side="right")
        cells = rows * len(words) + codes[there]
        self._counts = np.bincount(cells, minlength=len(lengths) * len(words)).reshape(len(lengths), len(words))

    @classmethod
    def of_texts(cls, texts: pa.Array, words: Sequence[str]) -> DocumentWords:
        """Return those of texts that have the words of each document as they are stored."""
        lists, lengths = _split(texts)
        found = pc.index_in(lists.flatten(), value_set=pa.array(words, pa.string()))
        return cls(pc.fill_null(found, _NO_CODE).to_numpy(zero_copy_only=False), lengths, words)

    def frequencies(self, word: str) -> Numbers:
        """Return how often each document has the word."""
        return self._counts[:, self._places[word]]

    def positions(self, row: int) -> Mapping[str, Sequence[int]]:
        """Return where each word is in a document."""
        end = int(self._ends[row])
        codes = self._codes[end - int(self.lengths[row]) : end]
        found: defaultdict[str, list[int]] = defaultdict(list)
        for at in np.flatnonzero(codes != _NO_CODE).tolist():
            found[self._words[int(codes[at])]].append(at)
        return found

    @cached_property
    def _words(self) -> list[str]:
        return list(self._places)


class CodedTexts:
    """The words of a column of several documents as numbers: those of a query are found in them without the texts."""

    def __init__(self, texts: pa.Array) -> None:
        lists, self._lengths = _split(texts)
        coded = lists.flatten().dictionary_encode()
        order = pc.sort_indices(coded.dictionary).to_numpy(zero_copy_only=False)
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        self._words: pa.StringArray = coded.dictionary.take(pa.array(order))
        self._codes: Codes = places[coded.indices.to_numpy(zero_copy_only=False)]
        self._begins: Numbers = np.concatenate([[0], np.cumsum(self._lengths)])

    @property
    def bytes(self) -> int:
        """Return how much memory they take."""
        return int(self._words.nbytes + self._codes.nbytes + self._lengths.nbytes + self._begins.nbytes)

    def documents(self, begin: int, end: int, words: Sequence[str]) -> DocumentWords:
        """Return the words of the documents from `begin` to `end`, of those words that a query has."""
        wanted = np.full(len(self._words), _NO_CODE, np.int32)
        for place, word in enumerate(words):
            if (code := self._code(word)) is not None:
                wanted[code] = place
        codes = wanted[self._codes[self._begins[begin] : self._begins[end]]]
        return DocumentWords(codes, self._lengths[begin:end], words)

    def _code(self, word: str) -> int | None:
        at = place_of(self._words, word)
        return at if at < len(self._words) and self._words[at].as_py() == word else None


@dataclass(frozen=True, slots=True)
class CodedColumns:
    """The words of several columns of the same documents."""

    columns: Mapping[str, CodedTexts]

    @property
    def bytes(self) -> int:
        """Return how much memory they take."""
        return sum(each.bytes for each in self.columns.values())


def _split(texts: pa.Array) -> tuple[pa.ListArray, Numbers]:
    """Return the words of texts, and how many each has: a document without words has none."""
    lists = pc.split_pattern(pc.utf8_slice_codeunits(texts, 1, -1), " ")
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lists, lengths.astype(np.int64)


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
