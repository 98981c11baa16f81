"""The places where a text may be cut: between the characters that people see, not within one that is made of several.

A subset of the extended grapheme clusters of Unicode (UAX 29) that the standard library's tables allow: marks and
joiners, emoji with their modifiers, flags, Hangul syllables in parts, and conjuncts of Indic scripts.
"""

from __future__ import annotations

from unicodedata import category, combining

GRAPHEME_CHARS_MAX = 64
"""Code points that are taken for one visible character; a longer one is cut, so that nobody can make the search for its
end long.
"""

FLAG_PARTS_MAX = 1_000
"""Code points of flags that are counted back to find how they are paired; in a longer row one may be cut in two."""

_JOINER = "\u200d"
_EXTENDS = frozenset("\u200c\uff9e\uff9f")
_VIRAMA_CLASS = 9


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
