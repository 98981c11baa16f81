"""Texts of the code as cells and paragraphs of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_CODE = re.compile(r"(`[^`\n]+`)")
_MARKS = re.compile(r"([*_\[\]|\\])")


def plain(text: str) -> str:
    """Return a text without line ends in which only what stands between backticks is Markdown."""
    parts = _CODE.split(" ".join(text.split()))
    return "".join(part if number % 2 else escaped(part) for number, part in enumerate(parts))


def escaped(text: str) -> str:
    """Return a text that Markdown shows as it is."""
    return _MARKS.sub(r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def code(text: str) -> str:
    """Return a text as code; nothing is nothing."""
    return f"`{text}`" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, and an empty one; of no rows nothing."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        yield from (f"| {' | '.join(head)} |", "|-" * len(head) + "|", *lines, "")
