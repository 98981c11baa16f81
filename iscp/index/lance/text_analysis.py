"""Turns texts into words by Lance's analysis, many texts in one call: its segmenter is made for each call.

Lance gives an object for each word, which costs more than all else. So of several texts the different pieces between
blanks are analysed, each once. That is the same as the analysis of whole texts where a blank ends a word whatever is
beyond it, as it does by the rules of each tokenizer that has words, for all characters up to U+02FF but a few.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.lance.lance_access import lance_faults

TEXT_BYTES_MAX = 1024 * 1024
"""Bytes of a text that is indexed; a row with a longer one has a fault."""

CALL_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of texts that are analysed in one call."""

PIECES_TEXTS_MIN = 16
"""Texts from which on their pieces are analysed: few texts share too little."""

_DIGITS = 12
_WHOLE = re.compile("[\x0b\x85\xa0\xad\u0300-\U0010ffff]")
"""What only an analysis of the whole text regards rightly: blanks to some, and what belongs to the character before."""

_ONE_WORD = "^[0-9A-Za-z]+$"
"""Pieces that are one word to each tokenizer."""

_FIRST_WORD = "0"

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
        found: list[str | None] = []
        for begin, end in _calls(texts):
            found += _joined(texts[begin:end], words_of) or [of_one(text) for text in texts[begin:end]]
        return found

    def placed(text: str) -> list[tuple[int, str]]:
        with lance_faults("analyse a text"):
            return [(each.position, each.text) for each in lance.tokenize(text, **options)]

    def by_pieces(texts: Sequence[str]) -> list[str | None]:
        found: list[str | None] = []
        for begin, end in _calls(texts):
            found += _of_pieces(texts[begin:end], placed, of_many)
        return found

    if not joins:
        return lambda texts: [of_one(text) for text in texts]
    return lambda texts: by_pieces(texts) if len(texts) >= PIECES_TEXTS_MIN else of_many(texts)


def _of_pieces(
    texts: Sequence[str], placed: Callable[[str], list[tuple[int, str]]], of_many: Analyse
) -> list[str | None]:
    """Analyse the pieces of texts; as wholes those texts where that is not the same.

    `placed` gives the words of a text with their numbers, as they are counted before some are left out.
    """
    whole = [number for number, text in enumerate(texts) if not _has_pieces(text)]
    if len(whole) == len(texts):
        return of_many(texts)
    left_out = set(whole)
    chosen = [number for number in range(len(texts)) if number not in left_out]
    lists = pc.ascii_split_whitespace(pa.array([texts[number] for number in chosen], pa.string()))
    coded = lists.flatten().dictionary_encode()
    found = pa.array(_words_of_pieces(coded.dictionary, placed, of_many), pa.string()).take(coded.indices)
    there = found.is_valid()
    rows = pc.list_parent_indices(lists).filter(there).to_numpy(zero_copy_only=False)
    counts = np.bincount(rows, minlength=len(chosen))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), found.filter(there)), " ").to_pylist()
    words: list[str | None] = [None] * len(texts)
    for number, one in zip(chosen, joined, strict=True):
        words[number] = f" {one} " if one else None
    for number, text in zip(whole, of_many([texts[number] for number in whole]), strict=True):
        words[number] = text
    return words


def _words_of_pieces(
    pieces: pa.StringArray, placed: Callable[[str], list[tuple[int, str]]], of_many: Analyse
) -> list[str | None]:
    """Return the words of each piece between single spaces, None for none."""
    words: list[str | None] = [None] * len(pieces)
    single = pc.match_substring_regex(pieces, _ONE_WORD)
    places = np.flatnonzero(single.to_numpy(zero_copy_only=False)).tolist()
    # Words are counted from the first one on that is not left out.
    found = placed(" ".join([_FIRST_WORD, *pieces.filter(single).to_pylist()]))
    if found[:1] == [(0, _FIRST_WORD)]:
        for number, word in found[1:]:
            words[places[number - 1]] = word
    else:
        single = pa.array(np.zeros(len(pieces), np.bool_))
    others = pc.invert(single)
    places = np.flatnonzero(others.to_numpy(zero_copy_only=False)).tolist()
    for place, text in zip(places, of_many(pieces.filter(others).to_pylist()), strict=True):
        words[place] = None if text is None else text[1:-1]
    return words


def _has_pieces(text: str) -> bool:
    return ("\x0b" not in text) if text.isascii() else _WHOLE.search(text) is None


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
    return [part.replace("  ", " ") if part.strip(" ") else None for part in parts]


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
