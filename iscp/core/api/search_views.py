"""A search of an index and its answer, as values that the library and the services share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any

from iscp.core.api.request_bounds import refuse_beyond
from iscp.core.values.errors import InvalidRequest

K_MAX = 1_000
"""Hits of one answer; a search for more is refused."""

SEARCH_TEXT_CHARS_MAX = 8_000
"""Characters of a query's text; a longer one is refused."""

VECTOR_NUMBERS_MAX = 8_192
"""Numbers of a query's vector; a longer one is refused."""

FILTER_CHARS_MAX = 16_000
"""Characters of a filter; a longer one is refused."""

COLUMNS_MAX = 1_000
"""Columns that a search may name for its hits; more are refused."""

MARK = ("<em>", "</em>")
"""What stands before and behind a word that is marked in a fragment."""

WAIT_S = 10.0
"""Seconds that a search waits for `min_version` unless it says otherwise; it is refused if the index is not there then.
"""

WAIT_S_MAX = 300.0
"""The most seconds that a search may wait for `min_version`; a longer wait is refused."""

WEIGHT_MAX = 1_000.0
"""The greatest weight of words or vectors in a hybrid search; a greater one is refused."""

URI_CHARS_MAX = 4_000
"""Characters of an index's place; a longer one is refused."""


@dataclass(frozen=True, slots=True)
class SearchWeights:
    """The ranking by words and that by vectors count so much in a hybrid search. One of them is more than 0."""

    text: float = 1.0
    vector: float = 1.0

    def __post_init__(self) -> None:
        for name in ("text", "vector"):
            refuse_beyond(f"weights.{name}", getattr(self, name), 0.0, WEIGHT_MAX)
        if not self.text + self.vector > 0:
            raise InvalidRequest("are both 0", field="weights", remedy="Give one of them a greater weight")


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """One search of the index at `uri`. Raises InvalidRequest for anything out of bounds.

    `text` is a query in Lucene's syntax, or the text that an index of vectors embeds; `vector` has a query's numbers.
    `filter` is a SQL condition on stored columns. `columns` are those stored ones that hits show (None: all).
    `min_version` is the source's version that the index has to have reached, for which the search waits `wait_s`
    seconds.
    """

    uri: str
    text: str = ""
    vector: tuple[float, ...] = ()
    k: int = 10
    filter: str = ""
    columns: tuple[str, ...] | None = None
    min_version: int | None = None
    wait_s: float = WAIT_S
    highlight: bool = False
    explain: bool = False
    weights: SearchWeights = field(default_factory=SearchWeights)

    def __post_init__(self) -> None:
        refuse_beyond("k", self.k, 1, K_MAX)
        refuse_beyond("wait_s", self.wait_s, 0.0, WAIT_S_MAX)
        if self.min_version is not None:
            refuse_beyond("min_version", self.min_version, 0, 2**62)
        for name, most in (
            ("uri", URI_CHARS_MAX),
            ("text", SEARCH_TEXT_CHARS_MAX),
            ("vector", VECTOR_NUMBERS_MAX),
            ("filter", FILTER_CHARS_MAX),
            ("columns", COLUMNS_MAX),
        ):
            if (size := len(getattr(self, name) or ())) > most:
                raise InvalidRequest(f"has a length of {size}, more than {most}", field=name, remedy="Make it shorter")
        if not self.uri:
            raise InvalidRequest("is empty", field="uri", remedy="Say where the index is")
        if not self.text.strip() and not self.vector:
            raise InvalidRequest(
                "there is nothing to search for", about="text", remedy="Give a text, a vector, or both"
            )
        if not all(math.isfinite(each) for each in self.vector):
            raise InvalidRequest(
                "has a number that is NaN or infinite", field="vector", remedy="Give finite numbers alone"
            )


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A row that was found.

    `key` has the source's key columns by name, `columns` the stored columns that were wished for. `score` is greater
    for a better hit: BM25; the cosine of the angle; minus the Euclidean distance; the inner product; or the sum of
    weight / (60 + rank) over the rankings of a hybrid search. `highlights` has the fragments of text columns in which
    words are marked, as HTML: `<em>` and `</em>` are marks alone, as a `<` of the text is written `&lt;`
    (`fragment_parts`). `explanation` says how the score came about, line by line (empty unless the search wants it).
    """

    key: Mapping[str, Any]
    score: float
    columns: Mapping[str, Any] = field(default_factory=dict)
    highlights: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    explanation: str = ""


def fragment_parts(fragment: str) -> list[tuple[str, bool]]:
    """Return the texts that make up a fragment of a hit's `highlights`, each with whether it is marked."""
    begin, end = MARK
    parts = []
    for number, part in enumerate(fragment.split(begin)):
        marked, _, plain = part.partition(end)
        parts += [(part, False)] if number == 0 else [(marked, True), (plain, False)]
    return [(unescape(part), marked) for part, marked in parts if part]


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The hits of a search, the best first, and at which version of the source they are.

    `version` is the version of the source that the index has wholly applied, `version_at_s` when that was committed
    (Unix seconds; 0: the source does not say). `index_version` is the index's own. `proven` says that no row that was
    left out scores better: always so for words, and for vectors where all were compared. `cut` has the prefixes and
    fuzzy words that stand for more words than were searched for. `took_ms` is the time of the search alone, without
    that spent waiting for a version (`waited_ms`).
    """

    hits: tuple[SearchHit, ...]
    version: int
    version_at_s: float
    index_version: int
    proven: bool = True
    cut: tuple[str, ...] = ()
    took_ms: float = 0.0
    waited_ms: float = 0.0
