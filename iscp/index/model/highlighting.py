"""The fragments of a text that show best why it was found, with its matched words marked; and, for these, texts as the
characters that people see: how words are folded for comparison, and where a text may be cut.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from unicodedata import category, combining, normalize

from iscp.model.values.errors import InvalidRequest

# --- folding and visible characters -----------------------------------------------------------------------------------
# Words are compared as folded: of the forms that Unicode has for a text (NFC, NFD, NFKC and NFKD, capital and small
# letters) all come to one. Highlights lie in the text as it is, so each folded character knows its place there.
#
# A text is cut between visible characters, not within one that is made of several. Visible characters are a subset of
# the extended grapheme clusters of Unicode (UAX 29) that the standard library's tables allow: marks and joiners, emoji
# with their modifiers, flags, Hangul syllables in parts, and conjuncts of Indic scripts.

GRAPHEME_CHARS_MAX = 64
"""Code points that are taken for one visible character; a longer one is cut, so that nobody can make the search for its
end long.
"""

FLAG_PARTS_MAX = 1_000
"""Code points of flags that are counted back to find how they are paired; in a longer row one may be cut in two."""

ATTACHES_CACHED_MAX = 10_000
"""Characters of which is remembered whether they join what is before them."""

_JOINER = "\u200d"
_EXTENDS = frozenset("\u200c\uff9e\uff9f")
_VIRAMA_CLASS = 9


def fold(text: str, *, case: bool = True, dotless: bool = False) -> str:
    """Return the text in the form that all its forms have: NFKC, and with `case` of small letters.

    Capital letters come first, as there are small ones that share them (`ı` and `i`). With `dotless` these two differ,
    as in Turkish. The dot that remains of `İ` goes: people write `istanbul`. Folding changes a folded text no more.
    """
    if text.isascii():
        return text.lower() if case else text
    if not case:
        return normalize("NFKC", text)
    parts = normalize("NFKD", text)
    parts = (parts if dotless else parts.upper()).casefold().replace("i\u0307", "i")
    return normalize("NFKC", parts)


@dataclass(frozen=True, slots=True)
class FoldedText:
    """A folded text, and where each of its characters has come from in the text as it was: the bounds of the visible
    character there. Without folding `starts` and `ends` are empty, and each character is its own.
    """

    text: str
    starts: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    def source(self, start: int, end: int) -> tuple[int, int]:
        """Return where the characters from `start` to before `end` have come from; there is one at least."""
        return (self.starts[start], self.ends[end - 1]) if self.starts else (start, end)


def folded_with_places(text: str, *, case: bool = True, dotless: bool = False) -> FoldedText:
    """Return what `fold` does of a text, with the places of its characters."""
    if text.isascii():
        return FoldedText(fold(text, case=case))
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    folded: dict[str, str] = {}
    begin = 0
    for at in range(1, len(text) + 1):
        if at < len(text) and (not is_boundary(text, at) or _attaches(text[at])):
            continue
        source = text[begin:at]
        if (part := folded.get(source)) is None:
            part = folded[source] = fold(source, case=case, dotless=dotless)
        parts.append(part)
        starts += [begin] * len(part)
        ends += [at] * len(part)
        begin = at
    return FoldedText("".join(parts), tuple(starts), tuple(ends))


@lru_cache(ATTACHES_CACHED_MAX)
def _attaches(character: str) -> bool:
    """Return whether a character may become one with what is before it: marks, and the later parts of syllables."""
    if character.isascii():
        return False
    first = normalize("NFKD", character)[0]
    return category(first) in ("Mn", "Me", "Mc") or "\u1160" <= first <= "\u11ff" or "\ud7b0" <= first <= "\ud7ff"


def is_boundary(text: str, at: int) -> bool:
    """Return whether no visible character lies on both sides of a place in the text."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before < "\u0300" and after < "\u0300":
        return (before, after) != ("\r", "\n")
    if _is_control(before) or _is_control(after):
        return True
    if _extends(after) or before == _JOINER or _joins_hangul(before, after):
        return False
    if combining(before) == _VIRAMA_CLASS and category(after) == "Lo":
        return False
    return not (_is_flag_part(before) and _is_flag_part(after) and _flag_parts_before(text, at) % 2 == 1)


def boundary_at_or_before(text: str, at: int) -> int:
    """Return the last place up to `at` where the text may be cut, `at` itself if there is none near."""
    return next((place for place in range(at, max(-1, at - GRAPHEME_CHARS_MAX), -1) if is_boundary(text, place)), at)


def boundary_at_or_after(text: str, at: int) -> int:
    """Return the first place from `at` on where the text may be cut, `at` itself if there is none near."""
    return next((place for place in range(at, at + GRAPHEME_CHARS_MAX) if is_boundary(text, place)), at)


def _is_control(character: str) -> bool:
    return character in "\r\n" or category(character) in ("Cc", "Zl", "Zp")


def _extends(character: str) -> bool:
    """Return whether it belongs to the character before it: a mark, a joiner, a skin tone, the tags of a flag."""
    return (
        category(character) in ("Mn", "Me", "Mc")
        or character == _JOINER
        or character in _EXTENDS
        or "\U0001f3fb" <= character <= "\U0001f3ff"
        or "\U000e0020" <= character <= "\U000e007f"
    )


def _joins_hangul(before: str, after: str) -> bool:
    first, second = _hangul_part(before), _hangul_part(after)
    return (first, second) in {
        ("L", "L"),
        ("L", "V"),
        ("L", "LV"),
        ("L", "LVT"),
        ("LV", "V"),
        ("V", "V"),
        ("LV", "T"),
        ("V", "T"),
        ("LVT", "T"),
        ("T", "T"),
    }


def _hangul_part(character: str) -> str:
    if "\u1100" <= character <= "\u115f" or "\ua960" <= character <= "\ua97c":
        return "L"
    if "\u1160" <= character <= "\u11a7" or "\ud7b0" <= character <= "\ud7c6":
        return "V"
    if "\u11a8" <= character <= "\u11ff" or "\ud7cb" <= character <= "\ud7fb":
        return "T"
    if "\uac00" <= character <= "\ud7a3":
        return "LV" if (ord(character) - 0xAC00) % 28 == 0 else "LVT"
    return ""


def _is_flag_part(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _flag_parts_before(text: str, at: int) -> int:
    """Return how many parts of flags, two of which are one, end at a place."""
    begin = at
    while begin > max(0, at - FLAG_PARTS_MAX) and _is_flag_part(text[begin - 1]):
        begin -= 1
    return at - begin


# --- fragments --------------------------------------------------------------------------------------------------------
# A fragment begins and ends between visible characters, and between words where there are blanks near. Texts of Chinese
# and Japanese have no blanks; there a fragment begins wherever its length allows.

HIGHLIGHTED_CHARS_MAX = 200_000
"""Characters of a text in which fragments are chosen; words beyond are not marked."""

FRAGMENTS_MAX = 20
"""Fragments of a text; a greater number is refused."""

FRAGMENT_CHARS_LEAST = 20
"""The least length of a fragment in characters without marks; a smaller one is refused."""

FRAGMENT_CHARS_MAX = 10_000
"""The greatest length of a fragment in characters without marks; a greater one is refused."""

MARK_CHARS_MAX = 200
"""Characters of a mark; a longer one is refused."""

WORD_REACH_CHARS = 20
"""Characters by which a fragment is shortened at either end to begin and end between words; farther it cuts a word."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """The place of a word in a text, in characters, and the word as the index has it."""

    start: int
    end: int
    term: str


@dataclass(frozen=True, slots=True)
class HighlightOptions:
    """The way in which fragments are made. If `html` is set, the text is escaped as the content of an
    element of HTML, and the marks are not: then no text forges a mark.

    Raises InvalidRequest for numbers out of bounds.
    """

    before: str = "<em>"
    after: str = "</em>"
    fragments: int = 3
    fragment_chars: int = 150
    html: bool = False

    def __post_init__(self) -> None:
        _refuse_beyond("fragments", self.fragments, 1, FRAGMENTS_MAX)
        _refuse_beyond("fragment_chars", self.fragment_chars, FRAGMENT_CHARS_LEAST, FRAGMENT_CHARS_MAX)
        for name, mark in (("before", self.before), ("after", self.after)):
            if len(mark) > MARK_CHARS_MAX:
                raise InvalidRequest(
                    f"has {len(mark)} characters, more than {MARK_CHARS_MAX}",
                    field=f"highlight.{name}",
                    remedy="Choose a shorter mark",
                )


def _refuse_beyond(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidRequest(
            f"is {value}, and not between {least} and {most}",
            field=f"highlight.{name}",
            remedy=f"Choose a number between {least} and {most}",
        )


@dataclass(frozen=True, slots=True)
class _Hit:
    """Neighbouring matched words, which are marked as one."""

    start: int
    end: int
    terms: tuple[str, ...]


def token_spans(
    text: str, surfaces: Sequence[str], terms: Sequence[str], *, overlapping: bool = False
) -> list[TokenSpan]:
    """Return the places of a text's words, which analysers do not say.

    `surfaces` are the words as they are written in the text, in order, `terms` the same ones as the index has them.
    N-grams are `overlapping`: those of one place come with the shortest first, as analysers give them. A word that is
    not in the text behind the one before it is left out.
    """
    spans: list[TokenSpan] = []
    begin, last = 0, 0
    for surface, term in zip(surfaces, terms, strict=True):
        if overlapping and spans:
            begin = spans[-1].start + (len(surface) <= last)
        start = text.find(surface, begin) if surface else -1
        if start >= 0:
            spans.append(TokenSpan(start, start + len(surface), term))
            begin, last = spans[-1].end, len(surface)
    return spans


def highlight(
    text: str, spans: Sequence[TokenSpan], matched: Collection[str], options: HighlightOptions | None = None
) -> tuple[str, ...]:
    """Return the best fragments of a text, in its order; none if no word of it is matched.

    The best have the most different words, then the most of them, then come first. Spans beyond the text are left out.
    No fragment has more characters than `options` allows, without its marks.
    """
    chosen = options or HighlightOptions()
    hits = _hits(text, spans, frozenset(matched), chosen.fragment_chars)
    cores = sorted(_best_windows(hits, chosen))
    places = _spread(text, [_core(text, hits, each, chosen.fragment_chars) for each in cores], chosen.fragment_chars)
    return tuple(_marked(text, start, end, hits, chosen) for start, end in places)


def _hits(text: str, spans: Sequence[TokenSpan], matched: frozenset[str], chars: int) -> list[_Hit]:
    """Return the matched places in order. Places that touch, overlap or have only blanks between them are one.

    They remain several where they would be longer than a fragment.
    """
    hits: list[_Hit] = []
    most = min(len(text), HIGHLIGHTED_CHARS_MAX)
    inside = (each for each in spans if each.term in matched and 0 <= each.start < each.end <= most)
    for span in sorted(inside, key=lambda each: (each.start, each.end)):
        start, end = boundary_at_or_before(text, span.start), boundary_at_or_after(text, span.end)
        last = hits[-1] if hits else None
        if last is not None and (start <= last.end or text[last.end : start].isspace()):
            if max(end, last.end) - last.start <= chars:
                hits[-1] = _Hit(last.start, max(end, last.end), (*last.terms, span.term))
                continue
            start = max(start, last.end)
        if start < end:
            hits.append(_Hit(start, end, (span.term,)))
    return hits


def _best_windows(hits: Sequence[_Hit], options: HighlightOptions) -> list[tuple[int, int]]:
    """Return the first and the last hit of each fragment, the best first."""
    found: list[tuple[int, int]] = []
    free = list(filter(None, [_best_window(hits, 0, len(hits), options.fragment_chars)]))
    while free and len(found) < options.fragments:
        best = max(free, key=lambda each: each.rank)
        free.remove(best)
        found.append((best.first, best.last))
        rest = ((best.low, best.first), (best.last + 1, best.high))
        free += filter(None, (_best_window(hits, low, high, options.fragment_chars) for low, high in rest))
    return found


@dataclass(frozen=True, slots=True)
class _Window:
    """The best fragment among the hits from `low` to before `high`."""

    rank: tuple[int, int, int]
    first: int
    last: int
    low: int
    high: int


def _best_window(hits: Sequence[_Hit], low: int, high: int, chars: int) -> _Window | None:
    """Return the best run of hits that fits into a fragment, by one pass with two ends."""
    best: _Window | None = None
    terms: Counter[str] = Counter()
    count = 0
    end = low
    for first in range(low, high):
        while end < high and (end <= first or hits[end].end - hits[first].start <= chars):
            terms.update(hits[end].terms)
            count += len(hits[end].terms)
            end += 1
        rank = (len(terms), count, -first)
        if best is None or rank > best.rank:
            best = _Window(rank, first, end - 1, low, high)
        for term in hits[first].terms:
            terms[term] -= 1
            if not terms[term]:
                del terms[term]
        count -= len(hits[first].terms)
    return best


def _core(text: str, hits: Sequence[_Hit], window: tuple[int, int], chars: int) -> tuple[int, int]:
    """Return the place of a run of hits; that of a single word which is too long is cut."""
    start, end = hits[window[0]].start, hits[window[1]].end
    if end - start <= chars:
        return start, end
    cut = boundary_at_or_before(text, start + chars)
    return start, cut if cut > start else start + chars


def _spread(text: str, cores: Sequence[tuple[int, int]], chars: int) -> Iterator[tuple[int, int]]:
    """Yield the places of fragments: each core with as much text around it as fits, without that of its neighbours."""
    low = 0
    limits = [*(start for start, _ in cores[1:]), len(text)]
    for (start, end), high in zip(cores, limits, strict=False):
        spare = chars - (end - start)
        left = max(low, start - max(spare // 2, spare - (high - end)))
        left = _word_start(text, left, start)
        right = _word_end(text, min(high, left + chars), end)
        low = right
        yield left, right


def _word_start(text: str, at: int, most: int) -> int:
    """Return where a fragment begins, from `at` to `most`: behind a blank if there is one near."""
    if at > 0 and not text[at - 1].isspace():
        reach = min(most, at + WORD_REACH_CHARS)
        at = next(
            (place for place in range(at, reach) if text[place].isspace()), min(most, boundary_at_or_after(text, at))
        )
    while at < most and text[at].isspace():
        at += 1
    return at


def _word_end(text: str, at: int, least: int) -> int:
    """Return where a fragment ends, from `least` to `at`: before a blank if there is one near."""
    if at < len(text) and not text[at].isspace():
        reach = max(least, at - WORD_REACH_CHARS)
        blanks = (place for place in range(at - 1, reach - 1, -1) if text[place].isspace())
        at = next(blanks, max(least, boundary_at_or_before(text, at)))
    while at > least and text[at - 1].isspace():
        at -= 1
    return at


def _marked(text: str, start: int, end: int, hits: Sequence[_Hit], options: HighlightOptions) -> str:
    parts: list[str] = []
    at = start
    for hit in hits[bisect_right(hits, start, key=lambda each: each.end) :]:
        if hit.start >= end:
            break
        begin, stop = max(hit.start, start), min(hit.end, end)
        parts += [_text(text[at:begin], options), options.before, _text(text[begin:stop], options), options.after]
        at = stop
    parts.append(_text(text[at:end], options))
    return "".join(parts)


def _text(part: str, options: HighlightOptions) -> str:
    return escape(part, quote=False) if options.html else part
