"""The definition of an index: the options of a job of the kinds `fulltext`, `vector` and `search`, which is both.

The stored form is the options themselves, all of them, with the number of the format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from iscp.index.model.graphemes import fold


class IndexKind(StrEnum):
    FULLTEXT = "fulltext"
    VECTOR = "vector"
    SEARCH = "search"

    @property
    def has_text(self) -> bool:
        return self is not IndexKind.VECTOR

    @property
    def has_vector(self) -> bool:
        return self is not IndexKind.FULLTEXT


class Tokenizer(StrEnum):
    """The ways to cut a text into words, by Lance's names."""

    ICU = "icu"
    SIMPLE = "simple"
    WHITESPACE = "whitespace"
    RAW = "raw"
    NGRAM = "ngram"

    @property
    def has_words(self) -> bool:
        """Return whether its words are those of a language, which can be stemmed and left out."""
        return self not in (Tokenizer.RAW, Tokenizer.NGRAM)


class Metric(StrEnum):
    COSINE = "cosine"
    L2 = "l2"
    DOT = "dot"


class VectorPrecision(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"


LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian"),
    *("norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil", "turkish"),
)
"""The languages that Lance has stemmers and lists of stop words of. The tokenizer `icu` leaves out those of all."""

TOKEN_LENGTH_DEFAULT = 40
"""Bytes of a word from which on it is not indexed, if a job does not say another number; that of Lance."""

RECALL_DEFAULT = 0.99
"""The share of the true nearest neighbours that a search is to find, if a job does not say another one."""


DOTLESS = "turkish"
"""The language in which `i` with its dot and `i` without it are two letters."""

_FOLDING_VERSION = 2

ANALYSIS_VERSION = 2
"""The analysis that makes words: 1 cut texts as they are, 2 folds them before. An index of an earlier one is searched
as it was made, until its job has built it again.
"""


@dataclass(frozen=True, slots=True)
class TextColumn:
    """A column of texts that is searched; `boost` multiplies its scores."""

    name: str
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Analysis:
    """The way in which texts become words.

    `language` is empty where there is neither stemming nor a list of stop words. The bounds of n-grams count for
    Tokenizer.NGRAM only. Words of `max_token_length` bytes in UTF-8, or more, are not indexed. Without `positions`
    no phrase can be searched for. `version` is that of the analysis by which words were made.
    """

    tokenizer: Tokenizer = Tokenizer.ICU
    language: str = ""
    stem: bool = False
    stop_words: bool = False
    lower_case: bool = True
    ascii_folding: bool = True
    max_token_length: int = TOKEN_LENGTH_DEFAULT
    positions: bool = True
    min_ngram: int = 3
    max_ngram: int = 3
    prefix_only: bool = False
    version: int = ANALYSIS_VERSION

    @property
    def folds(self) -> bool:
        """Return whether texts are folded before they are cut into words (iscp.index.model.graphemes)."""
        return self.version >= _FOLDING_VERSION

    @property
    def growth(self) -> int:
        """Return how many times the bytes of a text its words take at the most, but for a few characters."""
        if self.tokenizer is not Tokenizer.NGRAM:
            return 2
        return sum(length + 1 for length in range(self.min_ngram, self.max_ngram + 1))

    def folded(self, text: str) -> str:
        """Return the text that is cut into words."""
        return fold(text, case=self.lower_case, dotless=self.language == DOTLESS) if self.folds else text

    def grams(self, characters: int) -> int:
        """Return how many n-grams a text of so many characters has; 0 where words are no n-grams."""
        if self.tokenizer is not Tokenizer.NGRAM:
            return 0
        return gram_count(characters, self.min_ngram, self.max_ngram, prefix_only=self.prefix_only)


def gram_count(characters: int, least: int, most: int, *, prefix_only: bool) -> int:
    """Return how many n-grams of `least` to `most` characters a text has."""
    if prefix_only:
        return max(0, min(most, characters) - least + 1)
    return sum(max(0, characters - length + 1) for length in range(least, most + 1))


@dataclass(frozen=True, slots=True)
class VectorOptions:
    """Vectors come from `column`, or are made of `text` by the embedder `embed`; they are compared by `metric`."""

    column: str = ""
    text: str = ""
    embed: str = ""
    metric: Metric = Metric.COSINE
    precision: VectorPrecision = VectorPrecision.FLOAT32
    recall: float = RECALL_DEFAULT


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """The parsed options of a job. `analysis` is None without full text, `vector` without vectors.

    `stored` names the columns that are kept for filters and answers besides the key and the indexed ones.
    """

    kind: IndexKind
    columns: tuple[TextColumn, ...] = ()
    analysis: Analysis | None = None
    vector: VectorOptions | None = None
    stored: tuple[str, ...] = ()

    def boosts(self) -> dict[str, float]:
        """Return the factor of each text column."""
        return {each.name: each.boost for each in self.columns}

    def text_names(self) -> tuple[str, ...]:
        """Return the columns that full text is searched in."""
        return tuple(each.name for each in self.columns)

    def stored_columns(self, key: Sequence[str]) -> tuple[str, ...]:
        """Return all columns that the index holds, each once: the key, the indexed ones and those that are stored."""
        vector = (self.vector.column or self.vector.text,) if self.vector else ()
        names = (*key, *self.text_names(), *vector, *self.stored)
        first = {name.lower(): name for name in reversed(names)}
        return tuple(first[each] for each in dict.fromkeys(name.lower() for name in names))

    def options(self) -> dict[str, Any]:
        """Return all options, with the values that they have by default: `parse_definition` gives the same index."""
        options: dict[str, Any] = {"stored": list(self.stored)} if self.stored else {}
        if self.analysis is not None:
            options["columns"] = {each.name: each.boost for each in self.columns}
            options |= _analysis_options(self.analysis)
        if self.vector is not None:
            given = {name: getattr(self.vector, name) for name in ("column", "text", "embed")}
            options |= {name: value for name, value in given.items() if value}
            options |= {"metric": self.vector.metric.value, "precision": self.vector.precision.value}
            options["recall"] = self.vector.recall
        return options

    def analysed_by(self, version: int) -> IndexDefinition | None:
        """Return the same definition with a version of the analysis; None where no text is analysed."""
        return None if self.analysis is None else replace(self, analysis=replace(self.analysis, version=version))

    def to_json(self) -> str:
        """Return the stored form (iscp.index.model.definition_parsing reads it)."""
        stored: dict[str, Any] = {"format": _FORMAT_WITHOUT_VERSION, "kind": self.kind.value, "options": self.options()}
        if self.analysis is not None and self.analysis.version > 1:
            stored |= {"format": FORMAT, "analysis": self.analysis.version}
        return json.dumps(stored, separators=(",", ":"))


FORMAT = 2
"""The format of stored definitions. A newer one is refused; options that an older one lacks have their defaults. Those
without the version of an analysis have format 1 still, which earlier releases read.
"""

_FORMAT_WITHOUT_VERSION = 1


def _analysis_options(analysis: Analysis) -> dict[str, Any]:
    options: dict[str, Any] = {
        "tokenizer": analysis.tokenizer.value,
        "stem": analysis.stem,
        "stop_words": analysis.stop_words,
        "lower_case": analysis.lower_case,
        "ascii_folding": analysis.ascii_folding,
        "max_token_length": analysis.max_token_length,
        "positions": analysis.positions,
    }
    if analysis.language:
        options["language"] = analysis.language
    if analysis.tokenizer is Tokenizer.NGRAM:
        options["prefix_only"] = analysis.prefix_only
        options |= {"min_ngram": analysis.min_ngram, "max_ngram": analysis.max_ngram}
    return options
