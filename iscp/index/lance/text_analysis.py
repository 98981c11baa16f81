"""Turns texts into words by Lance's analysis, many texts in one call: its segmenter is made for each call.

Lance gives an object for each word, which costs more than all else. So of several texts the different pieces between
blanks are analysed, each once. That is the same as the analysis of whole texts where a blank ends a word whatever is
beyond it, as it does by the rules of each tokenizer that has words, for all characters up to U+02FF but a few.

Lance has Python's lock for as long as it analyses a text, and takes the square of the length of what has no blanks to
find words in it. So a call gets no more than a part of a text. N-grams are made by NumPy, without an object for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from iscp.index.lance.lance_access import lance_faults
from iscp.index.model.index_definition import gram_count
from iscp.model.values.errors import InvalidRequest

TEXT_BYTES_MAX = 1024 * 1024
"""Bytes of a text that is indexed; a row with a longer one has a fault."""

CALL_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of texts that are analysed together."""

PART_CHARS_MAX = 16_384
"""Characters that Lance analyses in one call, as nothing else of the process goes on meanwhile. A longer text is cut
where a word ends for certain; anywhere in a run of so many characters without such a place.
"""

GRAMS_MAX = 2**18
"""N-grams of a text that is indexed; a row with a text of more has a fault."""

_GRAMS_AT_ONCE = 2**15

PIECES_TEXTS_MIN = 16
"""Texts from which on their pieces are analysed: few texts share too little."""

_DIGITS = 12
_WHOLE = re.compile("[\x0b\x85\xa0\xad\u0300-\U0010ffff]")
"""What only an analysis of the whole text regards rightly: blanks to some, and what belongs to the character before."""

_BLANK_WITHIN = re.compile("[^\\S\n\x1c-\x1f]")
"""What divides words wherever Lance reads them, within one."""

_ONE_WORD = "^[0-9A-Za-z]+$"
"""Pieces that are one word to each tokenizer."""

_FIRST_WORD = "0"

_ENDS = re.compile("[\n\t \u3000\u3001\u3002\uff01\uff1f](?=\\w)")
"""Characters that end each word, where none follows that belongs to them."""

_BLANKS = re.compile("[\n\t ]")

_NGRAM, _WHITESPACE = "ngram", "whitespace"
_BLANK, _NOTHING, _CHARACTER_BYTES = ord(" "), 0, 64

Analyse = Callable[[Sequence[str]], list[str | None]]
"""The words of each of several texts as they are stored, between spaces; None for a text without words."""


def analyser(options: Mapping[str, Any], *, joins: bool = True) -> Analyse:
    """Return a function that gives the words of each of several texts, by the options of `lance.tokenize`.

    Without `joins` each text is analysed by itself and as a whole, as with n-grams, which go across words.
    """

    parts = _parts_between_blanks if options["base_tokenizer"] == _WHITESPACE else _parts if joins else _whole

    def words_of(text: str) -> list[str]:
        with lance_faults("analyse a text"):
            return [each.text for part in parts(text) for each in lance.tokenize(part, **options)]

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

    if options["base_tokenizer"] == _NGRAM:
        grams = _Grams(options)
        return lambda texts: [grams.of(text) for text in texts]
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
    first = 0
    for part in _batches(pieces.filter(single).to_pylist()):
        found = placed(" ".join([_FIRST_WORD, *part]))
        if found[:1] != [(0, _FIRST_WORD)]:
            single = pa.array(np.zeros(len(pieces), np.bool_))
            break
        for number, word in found[1:]:
            words[places[first + number - 1]] = word
        first += len(part)
    others = pc.invert(single)
    places = np.flatnonzero(others.to_numpy(zero_copy_only=False)).tolist()
    for place, text in zip(places, of_many(pieces.filter(others).to_pylist()), strict=True):
        words[place] = None if text is None else text[1:-1]
    return words


def _batches(pieces: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield pieces in turn, as many at a time as Lance analyses in one call."""
    begin, size = 0, 0
    for number, piece in enumerate(pieces):
        if size >= PART_CHARS_MAX:
            yield pieces[begin:number]
            begin, size = number, 0
        size += len(piece) + 1
    if begin < len(pieces):
        yield pieces[begin:]


def _parts(text: str) -> Iterator[str]:
    """Yield a text in parts, whose words are together those of the whole."""
    begin = 0
    while len(text) - begin > PART_CHARS_MAX:
        latest = begin + PART_CHARS_MAX
        end = text.rfind("\n", begin, latest) + 1
        if end <= begin:
            ends = [found.end() for found in _ENDS.finditer(text, begin, latest)]
            end = ends[-1] if ends else latest
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _parts_between_blanks(text: str) -> Iterator[str]:
    """Yield a text in parts where nothing but blanks ends a word; one word may be longer than a part."""
    begin = 0
    while len(text) - begin > PART_CHARS_MAX and (found := _BLANKS.search(text, begin + PART_CHARS_MAX)):
        yield text[begin : found.end()]
        begin = found.end()
    yield text[begin:]


def _whole(text: str) -> Iterator[str]:
    yield text


class _Grams:
    """Makes n-grams as Lance does: of each place of a text, the shorter ones first, and changed character by character.

    Blanks within them are left out, as they are between words.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._least, self._most = int(options["min_ngram_length"]), int(options["max_ngram_length"])
        self._prefix_only = bool(options["prefix_only"])
        self._bytes_max = int(options["max_token_length"])
        self._single = {**options, "min_ngram_length": 1, "max_ngram_length": 1, "max_token_length": _CHARACTER_BYTES}

    def of(self, text: str) -> str | None:
        """Return the n-grams of a text as words are stored. Raises InvalidRequest for one with more than GRAMS_MAX."""
        characters = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        if gram_count(len(characters), self._least, self._most, prefix_only=self._prefix_only) > GRAMS_MAX:
            raise InvalidRequest(f"has more than {GRAMS_MAX} n-grams", field="text", remedy="Give a shorter one")
        alphabet, numbers = np.unique(characters, return_inverse=True)
        table = _CharacterTable([self._changed(chr(each)) for each in alphabet.tolist()])
        sizes = np.concatenate([[0], np.cumsum(_utf8_sizes(characters))])
        lengths = np.arange(self._least, self._most + 1)
        starts = min(len(characters), 1 if self._prefix_only else len(characters))
        step = max(1, _GRAMS_AT_ONCE // int(lengths.sum() + len(lengths)))
        parts = [
            table.texts(self._places(np.arange(begin, min(begin + step, starts)), lengths, numbers, sizes))
            for begin in range(0, starts, step)
        ]
        found = np.concatenate([np.array([_BLANK], np.uint8), *parts])
        found = found[np.concatenate([[True], (found[1:] != _BLANK) | (found[:-1] != _BLANK)])]
        return found.tobytes().decode() if len(found) > 1 else None

    def _places(
        self,
        starts: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        sizes: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Return the characters of all n-grams that begin at these places, by their numbers in the table, each n-gram
        with a blank behind it.
        """
        count = len(numbers)
        columns = []
        for length in lengths.tolist():
            ends = np.minimum(starts + length, count)
            right = (starts + length <= count) & (sizes[ends] - sizes[starts] < self._bytes_max)
            within = numbers[np.minimum(starts[:, None] + np.arange(length), count - 1)] + 2
            blank = np.ones((len(starts), 1), np.int64)
            columns.append(np.where(right[:, None], np.hstack([within, blank]), _NOTHING))
        return np.hstack(columns).ravel()

    def _changed(self, character: str) -> str:
        """Return a character as Lance changes it, without blanks."""
        with lance_faults("analyse a text"):
            return "".join("".join(each.text.split()) for each in lance.tokenize(character, **self._single))


class _CharacterTable:
    """The texts of characters, in UTF-8: number 0 is none, 1 the blank between words, and `texts` come after these."""

    def __init__(self, texts: Sequence[str]) -> None:
        encoded = [b"", b" ", *(each.encode() for each in texts)]
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)
        self._sizes = np.array([len(each) for each in encoded], np.int64)
        self._begins = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])

    def texts(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return the texts of these, one after the other."""
        sizes = self._sizes[numbers]
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if len(ends) else 0
        return self._bytes[np.repeat(self._begins[numbers] - ends + sizes, sizes) + np.arange(total)]


def _utf8_sizes(characters: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    bounds = np.array([0x80, 0x800, 0x10000], np.uint32)
    return np.searchsorted(bounds, characters, side="right").astype(np.int64) + 1


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
    found = "\n".join(words_of(joined))
    if _BLANK_WITHIN.search(found):  # folding has made a blank of a part of a word
        found = "\n".join(filter(None, _BLANK_WITHIN.sub("", found).split("\n")))
    words = " " + found.replace("\n", "  ") + " "
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
