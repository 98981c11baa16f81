"""Make vectors of hashed character n-grams ("feature hashing", Weinberger et al. 2009), without a model.

Texts are near to each other if they share many runs of three characters. Meaning is not known: for tests, and for
small uses such as names with misspellings.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from iscp.index.embedding.embedder import Vectors
from iscp.model.settings.embedder_config import EmbedderConfig

HASHED_DIMENSION = 256
"""Numbers in a vector where `dimension` is not given."""

HASHED_CHARS_MAX = 20_000
"""Characters of a text that count where `chars_max` is not given; the rest is left out."""

HASHED_BATCH_MAX = 256
"""Texts that are hashed at once."""

FORMAT = 1

_GRAM = 3
# The constants of splitmix64 (Steele et al. 2014), which spreads n-grams over all numbers.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_Numbers = npt.NDArray[np.uint64]


class HashedEmbedder:
    """The embedder `hashed` distinguishes neither case, nor forms of Unicode that mean the same.

    A vector has the length 1, that of a text without characters too.
    """

    batch_max = HASHED_BATCH_MAX

    def __init__(self, config: EmbedderConfig) -> None:
        self.dimension = config.dimension or HASHED_DIMENSION
        self._chars_max = config.chars_max or HASHED_CHARS_MAX
        # Folding of case and forms are those of Python's version of Unicode.
        unicode = unicodedata.unidata_version
        self.fingerprint = f"hashed/{FORMAT}/{self.dimension}/{self._chars_max}/unicode-{unicode}"

    def embed(self, texts: Sequence[str], /) -> Vectors:
        """Return the vectors of `texts`."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        plain = [self._plain(text) for text in texts]
        lengths = np.array([len(text) for text in plain])
        codes = np.frombuffer("".join(plain).encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
        # No n-gram begins in the last characters of a text, where it would end in the next one.
        starts = np.arange(len(codes))
        ends = np.repeat(np.cumsum(lengths), lengths)
        starts = starts[starts + _GRAM <= ends]
        text_of = np.repeat(np.arange(len(plain)), lengths - _GRAM + 1)
        hashes = _spread(codes[starts] | codes[starts + 1] << np.uint64(21) | codes[starts + 2] << np.uint64(42))
        places = (hashes >> np.uint64(1)) % np.uint64(self.dimension)
        signs = np.where(hashes & np.uint64(1), 1.0, -1.0)
        at = text_of * self.dimension + places.astype(np.int64)
        sums = np.bincount(at, signs, minlength=len(plain) * self.dimension).astype(np.float64)
        return _of_length_one(sums.reshape(len(plain), self.dimension))

    def _plain(self, text: str) -> str:
        folded = unicodedata.normalize("NFKC", text[: self._chars_max]).casefold()
        return f" {folded[: self._chars_max]} ".ljust(_GRAM)


def _spread(values: _Numbers) -> _Numbers:
    for shift, factor in _STEPS:
        values = (values ^ values >> np.uint64(shift)) * np.uint64(factor)
    return values ^ values >> np.uint64(31)


def _of_length_one(sums: npt.NDArray[np.float64]) -> Vectors:
    lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
    # N-grams with opposite signs in one place may cancel each other.
    sums[lengths[:, 0] == 0.0, 0] = 1.0
    lengths[lengths == 0.0] = 1.0
    vectors: Vectors = (sums / lengths).astype(np.float32)
    return vectors
