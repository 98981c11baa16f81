"""Texts as characters that people see: one form of each for words that are compared, and where a text may be cut.

Words are compared as folded: of the forms that Unicode has for a text (NFC, NFD, NFKC and NFKD, capital and small
letters) all come to one. Highlights lie in the text as it is, so that each folded character knows where it comes from.

A text is cut between visible characters, not within one that is made of several. These are a subset of the extended
grapheme clusters of Unicode (UAX 29) that the standard library's tables allow: marks and joiners, emoji with their
modifiers, flags, Hangul syllables in parts, and conjuncts of Indic scripts.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from unicodedata import category, combining, normalize

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
