"""The board that searches indexes, and says at which version of the source the answer is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from iscp.model.api.api_requests import SEARCH_TEXT_CHARS_MAX, URI_CHARS_MAX, SearchAnswer, SearchHit, fragment_parts
from iscp.server.boards.job_board import JobFacts, short

INDEX_KINDS = frozenset({"fulltext", "vector", "search"})
"""Kinds of jobs whose targets can be searched."""

INDEXES_MAX = 500
"""Indexes that the board offers; a further one can be written into the address."""

HITS = 10
"""Hits of one answer."""

VALUE_CHARS_MAX = 400
"""Characters of a column of a hit; the rest is cut."""

FRAGMENTS_CHARS_MAX = 4 * VALUE_CHARS_MAX
"""Characters of the fragments of a column; the rest is cut."""

COLUMNS_SHOWN_MAX = 12
"""Columns of a hit; the others are left out."""


@dataclass(frozen=True, slots=True)
class ShownHit:
    """A hit: its key in one line, its other columns, and of columns in which words were found the texts of fragments,
    each with whether it is marked.
    """

    key: str
    score: str
    columns: Sequence[tuple[str, str]]
    fragments: Sequence[tuple[str, Sequence[tuple[str, bool]]]]


@dataclass(frozen=True, slots=True)
class SearchBoard:
    """The board; `hits` are those of `answer`, which is None where nothing was searched for."""

    uri: str
    text: str
    indexes: Sequence[JobFacts]
    answer: SearchAnswer | None
    hits: Sequence[ShownHit]
    fault: str


def wanted_of(query: Mapping[str, str]) -> tuple[str, str]:
    """Return the index and the text of an address, cut to what a search may have."""
    return query.get("index", "")[:URI_CHARS_MAX], query.get("text", "").strip()[:SEARCH_TEXT_CHARS_MAX]


def search_board(
    jobs: Sequence[JobFacts], query: Mapping[str, str], answer: SearchAnswer | None, fault: str = ""
) -> SearchBoard:
    """Return the board; `fault` says why there is no answer. An address without an index wants the only one."""
    uri, text = wanted_of(query)
    indexes = sorted((job for job in jobs if job.kind in INDEX_KINDS and job.target), key=lambda job: job.target)
    hits = [_hit(each) for each in answer.hits] if answer is not None else []
    if not uri and len(indexes) == 1:
        uri = indexes[0].target
    return SearchBoard(uri, text, indexes[:INDEXES_MAX], answer, hits, fault)


def _hit(hit: SearchHit) -> ShownHit:
    shown = {*hit.key, *hit.highlights}
    columns = [(name, _text(value)) for name, value in hit.columns.items() if name not in shown]
    return ShownHit(
        key=", ".join(f"{name} = {_text(value)}" for name, value in hit.key.items()),
        score=f"{hit.score:.4g}",
        columns=columns[:COLUMNS_SHOWN_MAX],
        fragments=[(name, list(_parts_of(texts))) for name, texts in hit.highlights.items()],
    )


def _parts_of(texts: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a column's fragments, each with whether it is marked, until there is enough to see."""
    left = FRAGMENTS_CHARS_MAX
    for number, text in enumerate(texts):
        for part, marked in ((" … ", False), *fragment_parts(text)) if number else fragment_parts(text):
            if left <= 0:
                return
            yield short(part, left), marked
            left -= len(part)


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return short(text, VALUE_CHARS_MAX)
