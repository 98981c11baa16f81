"""The best rows of those that were scored so far, in their order: by score, then by key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, order=True)
class RankedRow:
    """A row of the dataset. Rows compare in the order of hits: the best is the least."""

    loss: float
    key: str
    address: int = field(compare=False)

    @property
    def score(self) -> float:
        return -self.loss


class BestRows:
    """Keeps the `most` best rows; rows of equal scores are ordered by the texts of their keys."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows: Sequence[RankedRow] = ()

    def restart(self, rows: Sequence[RankedRow]) -> None:
        """Keep these rows alone, as if no others had been added."""
        self.rows = rows

    def worthy(self, scores: npt.NDArray[np.float64]) -> list[int]:
        """Return which of rows with these scores may be among the best, NaN being no score."""
        found = np.flatnonzero(~np.isnan(scores))
        if len(found) > self.most:
            # All rows that are as good as the last one that is kept: their keys decide.
            least = np.partition(scores[found], -self.most)[-self.most]
            found = found[scores[found] >= least]
        chosen: list[int] = found.tolist()
        return chosen

    def add(self, scores: npt.NDArray[np.float64], keys: Sequence[str], addresses: Sequence[int]) -> None:
        """Take rows with scores; NaN is no score."""
        more = [RankedRow(-float(scores[at]), keys[at], addresses[at]) for at in self.worthy(scores)]
        # Tuples compare many times faster than rows do.
        self.rows = sorted([*self.rows, *more], key=attrgetter("loss", "key"))[: self.most]

    def reaches(self, score: float) -> bool:
        """Return whether no row of at most this score is missing."""
        return len(self.rows) >= self.most and self.rows[-1].score >= score
