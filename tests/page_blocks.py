"""The blocks of code in a document, and which of them say that nothing runs them.

A block that a reader runs, and no test does, has the reason above it: `<!-- not run: why -->`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A block by its page; `heading` is the one that it lies below, and `why` the reason that it is not run."""

    page: str
    heading: str
    language: str
    body: str
    why: str = ""


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield all blocks of a page in their order, of whichever language."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        headings = _HEADING.findall(_BLOCK.sub("", text[: found.start()]))
        yield Block(page.name, headings[-1], found["language"], found["body"], found["why"] or "")
