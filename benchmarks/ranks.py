"""The ranks that a full-text search has to give, computed from the live texts alone: BM25 as its authors wrote it.

Nothing of an index is used here, nor of iscp.index. Texts have lower-case words between single spaces.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

SCORE_ERROR_MAX = 1e-4
"""The relative error of a score from which on it counts as wrong."""

_K1, _B = 1.2, 0.75


class ExpectedRanks:
    """Of all live texts by their keys, for these words."""

    def __init__(self, live: Mapping[int, str], words: Sequence[str]) -> None:
        self._keys = np.array(list(live))
        self._lengths = np.empty(len(live))
        wanted: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        sought = set(words)
        for place, text in enumerate(live.values()):
            parts = text.split()
            self._lengths[place] = len(parts)
            for word in sought.intersection(parts):
                places, counts = wanted[word]
                places.append(place)
                counts.append(parts.count(word))
        self._wanted = {word: (np.array(places), np.array(counts)) for word, (places, counts) in wanted.items()}

    def scores(self, query: str) -> npt.NDArray[np.float64]:
        total, mean = np.zeros(len(self._keys)), self._lengths.mean()
        for word in query.split():
            if word not in self._wanted:
                continue
            places, counts = self._wanted[word]
            idf = math.log(1 + (len(self._keys) - len(places) + 0.5) / (len(places) + 0.5))
            norms = _K1 * (1 - _B + _B * self._lengths[places] / mean)
            total[places] += idf * counts * (_K1 + 1) / (counts + norms)
        return total

    def fault(self, query: str, hits: Sequence[tuple[int, float]], k: int) -> str:
        """Why hits (keys and scores) are not the best `k`, up to ties; empty if they are."""
        scores = self.scores(query)
        best = np.sort(scores[scores > 0])[::-1][:k]
        if len(hits) != len(best):
            return f"{len(hits)} hits, and there are {len(best)}"
        by_key = {int(self._keys[place]): float(scores[place]) for place in np.flatnonzero(scores > 0)}
        for (key, score), expected in zip(hits, best, strict=True):
            for right in (by_key.get(key, 0.0), float(expected)):
                if not math.isclose(score, right, rel_tol=SCORE_ERROR_MAX):
                    return f"{key} has {score}, and {right} is right"
        return ""
