"""Choose the data files that are rewritten with a commit of few changed rows, as in a log-structured merge tree.

Each such commit leaves a small file and marks rows of others as gone. Without an end to that a reader would open ever
more files for ever fewer rows. The class of a file follows from the rows that are left in it; as soon as there are too
many files of one class they become one of the next, so that a row is rewritten once a class, and not once a commit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

FILES_OF_A_CLASS_MAX = 16
"""Files of a class, and the factor between the rows of one class and those of the one below it."""

MERGED_ROWS_MAX = 1_000_000
"""Rows that one commit rewrites at most; files with more in them stay as they are, but for rows marked as gone."""


Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, slots=True)
class FileRows:
    """The numbers of rows that a data file has, and of those that are not gone."""

    written: int
    left: int


def files_to_merge(files: Mapping[Name, FileRows], coming: int) -> frozenset[Name]:
    """Return the files that are rewritten, as one file with `coming` further rows, by their names in `files`.

    Files most of whose rows are gone are rewritten too.
    """
    chosen: set[Name] = set()
    total = coming
    for name in sorted(files, key=lambda each: files[each].left):
        rows = files[name]
        if 0 < rows.left < rows.written / 2 and total + rows.left <= MERGED_ROWS_MAX:
            chosen.add(name)
            total += rows.left
    for each in sorted({_class(rows.left) for rows in files.values() if rows.left}):
        of_class = {name for name, rows in files.items() if rows.left and _class(rows.left) == each} - chosen
        more = sum(files[name].left for name in of_class)
        if len(of_class) + (_class(total) == each) > FILES_OF_A_CLASS_MAX and total + more <= MERGED_ROWS_MAX:
            chosen |= of_class
            total += more
    return frozenset(chosen)


def _class(rows: int) -> int:
    found = 0
    while rows >= FILES_OF_A_CLASS_MAX:
        rows //= FILES_OF_A_CLASS_MAX
        found += 1
    return found
