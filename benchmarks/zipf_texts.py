"""Texts whose words are as frequent as those of a language: the same on every machine, as they follow from seeds.

The word at rank n of the vocabulary is drawn with a probability in proportion to 1 / (n + 2.7), as Mandelbrot's form of
Zipf's law has it for English. Words are made of syllables, frequent ones of fewer. A text has half to one and a half
times the mean number of words.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

WORDS = 60
"""Words of a text, in the mean."""

VOCABULARY = 50_000
CHUNK_ROWS = 50_000
_OFFSET = 2.7
_ONSETS, _NUCLEI = tuple("bcdfghlmnprstvz"), ("a", "e", "i", "o", "u", "ai", "ou")


@cache
def vocabulary() -> tuple[str, ...]:
    """All words, the most frequent first."""
    syllables = [onset + nucleus for onset in _ONSETS for nucleus in _NUCLEI]
    made = ("".join(parts) for length in (1, 2, 3) for parts in itertools.product(syllables, repeat=length))
    return tuple(itertools.islice(dict.fromkeys(made), VOCABULARY))


@cache
def _cumulated() -> npt.NDArray[np.float64]:
    weights = 1 / (np.arange(len(vocabulary())) + _OFFSET)
    summed: npt.NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    return summed


def texts(seed: int, count: int) -> list[str]:
    draw, known = np.random.default_rng(seed), np.array(vocabulary(), object)
    lengths = draw.integers(WORDS // 2, WORDS + WORDS // 2 + 1, count)
    chosen = known[np.searchsorted(_cumulated(), draw.random(int(lengths.sum())))]
    ends = np.cumsum(lengths).tolist()
    return [" ".join(chosen[begin:end]) for begin, end in itertools.pairwise([0, *ends])]


def documents(first: int, count: int) -> Iterator[pa.Table]:
    """Tables of rows with the keys from `first` on, and what a filter can select by."""
    for begin in range(first, first + count, CHUNK_ROWS):
        size = min(CHUNK_ROWS, first + count - begin)
        yield rows(range(begin, begin + size), texts(begin, size))


def rows(keys: range | list[int], bodies: list[str]) -> pa.Table:
    prices = pa.array([key % 100 for key in keys], pa.int64())
    return pa.table({"id": pa.array(list(keys), pa.int64()), "body": pa.array(bodies, pa.string()), "price": prices})


def queries(seed: int, count: int) -> list[str]:
    """Queries of one to three words, each drawn as the words of texts are."""
    draw, known = np.random.default_rng(seed), vocabulary()
    found = []
    for _ in range(count):
        places = np.searchsorted(_cumulated(), draw.random(int(draw.integers(1, 4))))
        found.append(" ".join(dict.fromkeys(known[int(place)] for place in places)))
    return found
