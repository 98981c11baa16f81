"""Turns texts into words by Lance's analysis, many texts in one call: its segmenter is made for each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import lance

from iscp.index.lance.lance_access import lance_faults

TEXT_BYTES_MAX = 1024 * 1024
"""Bytes of a text that is indexed; a row with a longer one has a fault."""

CALL_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of texts that are analysed in one call."""

_DIGITS = 12

Analyse = Callable[[Sequence[str]], list[str | None]]
"""The words of each of several texts as they are stored, between spaces; None for a text without words."""


def analyser(options: Mapping[str, Any], *, joins: bool = True) -> Analyse:
    """Return a function that gives the words of each of several texts, by the options of `lance.tokenize`.

    Without `joins` each text is analysed by itself, as with n-grams, which go across words.
    """

    def words_of(text: str) -> list[str]:
        with lance_faults("analyse a text"):
            return [each.text for each in lance.tokenize(text, **options)]

    def of_one(text: str) -> str | None:
        return words_text(["".join(word.split()) for word in words_of(text)])

    def of_many(texts: Sequence[str]) -> list[str | None]:
        if not joins:
            return [of_one(text) for text in texts]
        found: list[str | None] = []
        for begin, end in _calls(texts):
            found += _joined(texts[begin:end], words_of) or [of_one(text) for text in texts[begin:end]]
        return found

    return of_many


def _calls(texts: Sequence[str]) -> list[tuple[int, int]]:
    bounds, begin, size = [], 0, 0
    for number, text in enumerate(texts):
        size += len(text)
        if size > CALL_BYTES_MAX:
            bounds.append((begin, number + 1))
            begin, size = number + 1, 0
    return [*bounds, (begin, len(texts))] if begin < len(texts) else bounds


def _joined(texts: Sequence[str], words_of: Callable[[str], list[str]]) -> list[str | None]:
    """Analyse several texts as one, with a mark between them that no text has and that the analysis leaves as it is.

    Return nothing if a text has swallowed a mark.
    """
    mark = _mark(texts)
    joined = f"\n{mark}\n".join(texts)  # no rule of a tokenizer regards what is beyond the end of a line
    # Each word has a space of its own at either end, so that marks side by side are found too.
    words = f" {'  '.join(words_of(joined))} "
    parts = words.split(f" {mark} ")
    if len(parts) != len(texts):
        return []
    return [part.replace("  ", " ") if part.strip() else None for part in parts]


def _mark(texts: Sequence[str]) -> str:
    """Return digits that are in none of the texts."""
    seed = b""
    while True:
        seed = sha256(seed + b"mark").digest()
        mark = str(int.from_bytes(seed[:8], "big"))[:_DIGITS]
        if not any(mark in text for text in texts):
            return mark


def words_text(words: Sequence[str]) -> str | None:
    """Return words as they are stored, or None for none."""
    some = [word for word in words if word]
    return f" {' '.join(some)} " if some else None
