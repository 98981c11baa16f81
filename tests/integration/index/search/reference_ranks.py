"""The ranks that searches have to give: BM25 over the live rows, as plainly as it can be written.

Queries are drawn as clauses, so that nothing of the query's parser, of its analysis or of its scores is used here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Documents = Mapping[str, Mapping[str, Sequence[str]]]
"""The words of live rows, by key and column."""


@dataclass(frozen=True)
class Clause:
    """Words of a kind: `words`, `phrase`, `prefix` or `fuzzy`; `occur` is `+`, `-` or nothing."""

    occur: str
    kind: str
    words: tuple[str, ...]
    columns: tuple[str, ...]
    boost: float = 1.0
    distance: int = 1

    def text(self, all_columns: Sequence[str]) -> str:
        column = f"{self.columns[0]}:" if self.columns != tuple(all_columns) else ""
        boost = f"^{self.boost:g}" if self.boost != 1 else ""
        match self.kind:
            case "words":
                body = " ".join(f"{column}{word}{boost}" for word in self.words)
                return f"{self.occur}({body})" if len(self.words) > 1 else f"{self.occur}{body}"
            case "phrase":
                return f'{self.occur}{column}"{" ".join(self.words)}"{boost}'
            case "prefix":
                return f"{self.occur}{column}{self.words[0]}*{boost}"
            case _:
                return f"{self.occur}{column}{self.words[0]}~{self.distance}{boost}"


def draw_query(draw: random.Random, words: Sequence[str], columns: Sequence[str]) -> list[Clause]:
    """Return clauses, one of which at least is to be found."""
    clauses = []
    for number in range(draw.randint(1, 4)):
        kind = draw.choices(("words", "phrase", "prefix", "fuzzy"), (6, 2, 1, 1))[0]
        count = draw.randint(1, 3) if kind == "words" else 2 if kind == "phrase" else 1
        chosen = tuple(draw.choice(words[: draw.choice((8, 60, len(words)))]) for _ in range(count))
        if kind == "prefix":
            chosen = (chosen[0][:-1],)
        if kind == "fuzzy" and len(chosen[0]) > 2 and draw.random() < 0.5:
            chosen = (chosen[0][1] + chosen[0][0] + chosen[0][2:],)
        where = tuple(columns) if draw.random() < 0.6 else (draw.choice(columns),)
        occur = draw.choices(("", "+", "-"), (5, 3, 2))[0] if number else draw.choice(("", "+"))
        clauses.append(Clause(occur, kind, chosen, where, draw.choice((1.0, 1.0, 2.5, 0.25))))
    return clauses


class ReferenceRanks:
    """Ranks documents. `boosts` are those of the index's columns."""

    def __init__(self, documents: Documents, boosts: Mapping[str, float]) -> None:
        self.documents = documents
        self._boosts = boosts
        self._having = {column: [each[column] for each in documents.values() if column in each] for column in boosts}
        self._counts = {column: _counted(texts) for column, texts in self._having.items()}

    def ranked(self, clauses: Sequence[Clause], keys: set[str] | None = None) -> list[tuple[float, str]]:
        """Return scores and keys of all rows that are found, in order; `keys` are those that pass a filter."""
        expanded = [(each, self._expanded(each)) for each in clauses]
        found = []
        for key, document in self.documents.items():
            if keys is not None and key not in keys:
                continue
            scores = [(clause.occur, self._score(clause, parts, document)) for clause, parts in expanded]
            if any(occur == "-" and score is not None for occur, score in scores):
                continue
            must = [score for occur, score in scores if occur == "+"]
            should = [score for occur, score in scores if occur == "" and score is not None]
            if any(score is None for score in must) or (not must and not should):
                continue
            found.append((math.fsum([*(each for each in must if each is not None), *should]), key))
        return sorted(found, key=lambda each: (-each[0], each[1]))

    def _expanded(self, clause: Clause) -> list[tuple[str, str, float]]:
        """Return column, word and factor of the words that a clause stands for."""
        parts = []
        for column in clause.columns:
            counts = self._counts[column]
            match clause.kind:
                case "prefix":
                    parts += [(column, word, 1.0) for word in counts if word.startswith(clause.words[0])]
                case "fuzzy":
                    wanted = clause.words[0]
                    near = ((word, _changes(wanted, word)) for word in counts)
                    parts += [
                        (column, word, 1 - changes / min(len(word), len(wanted)))
                        for word, changes in near
                        if changes <= clause.distance
                    ]
                case _:
                    parts += [(column, word, 1.0) for word in clause.words]
        return parts

    def _score(
        self, clause: Clause, parts: Sequence[tuple[str, str, float]], document: Mapping[str, Sequence[str]]
    ) -> float | None:
        """Return what a clause adds, or None where it is not found."""
        score, found = 0.0, False
        for column, word, factor in parts:
            text = document.get(column, ())
            if clause.kind == "phrase" and not _has_phrase(text, clause.words):
                continue
            if (frequency := list(text).count(word)) and factor > 0:
                found = True
                score += clause.boost * self._boosts[column] * factor * self._weight(column, word, frequency, len(text))
        return score if found else None

    def _weight(self, column: str, word: str, frequency: int, length: int) -> float:
        texts = self._having[column]
        average = sum(map(len, texts)) / len(texts)
        count = self._counts[column][word]
        idf = math.log(1 + (len(texts) - count + 0.5) / (count + 0.5))
        return idf * frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length / average))


def _has_phrase(text: Sequence[str], words: Sequence[str]) -> bool:
    return any(tuple(text[at : at + len(words)]) == tuple(words) for at in range(len(text)))


def _counted(texts: Sequence[Sequence[str]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for text in texts:
        for word in set(text):
            counts[word] = counts.get(word, 0) + 1
    return counts


def _changes(one: str, other: str) -> int:
    """Return how many changes there are between two words, where neighbours that change places are one."""
    rows = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in range(len(one) + 1):
        for j in range(len(other) + 1):
            if not i or not j:
                rows[i][j] = i + j
                continue
            rows[i][j] = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (one[i - 1] != other[j - 1]))
            if i > 1 and j > 1 and one[i - 1] == other[j - 2] and one[i - 2] == other[j - 1]:
                rows[i][j] = min(rows[i][j], rows[i - 2][j - 2] + 1)
    return rows[-1][-1]


def require_ranks(hits: Sequence[tuple[float, str]], expected: Sequence[tuple[float, str]], k: int, what: str) -> None:
    """Fail unless hits have the scores and, up to ties, the keys that they have to have."""
    assert len(hits) == min(k, len(expected)), (what, len(hits), len(expected))
    by_key = {key: score for score, key in expected}
    assert len({key for _, key in hits}) == len(hits), what
    for (score, key), (best, _) in zip(hits, expected, strict=False):
        assert key in by_key, (what, key)
        assert math.isclose(score, best, rel_tol=1e-4), (what, key, score, best)
        assert math.isclose(score, by_key[key], rel_tol=1e-4), (what, key, score, by_key[key])
