"""Find the parts of two tables that differ, by digests of ranges of their keys.

A range is a class of keys: those whose hash leaves one remainder modulo the number of ranges. Twice as many ranges are
halves of the former ones, so that what differs can be narrowed without storing anything.

How sure is it? A range's digest is its number of rows and the exact sums of two 64-bit hashes of each row. Sums do not
depend on the rows' order, and a row that is there twice counts twice, which it would not in an exclusive or. If the
rows of a range differ as multisets, some row's hash has one value at the most for which the sums agree: by chance that
is 1 of 2^64 for one hash, and about 1 of 2^128 for both. That is beyond what disks and memory promise. The hashes are
not cryptographic: who writes a target in order to deceive can find rows that seem equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

ROWS_PER_RANGE = 20_000
"""Rows in a range of keys when tables are compared; the ranges are as many as that takes, up to RANGES_MAX."""

RANGES_MAX = 4_096
"""Ranges of keys compared at a time, about; larger tables have larger ranges."""

ROWS_READ_MAX = 1_000_000
"""Rows in ranges that differ; above it these ranges are narrowed before their rows are read."""

NARROWINGS_MAX = 2
"""Times that differing ranges are narrowed; then their rows are read, however many they are."""


@dataclass(frozen=True, slots=True)
class Digest:
    """The digest of some rows: how many there are, and the sums of their first and second hash, each taken as
    unsigned.
    """

    rows: int = 0
    first: int = 0
    second: int = 0

    def __add__(self, other: Digest) -> Digest:
        return Digest(self.rows + other.rows, self.first + other.first, self.second + other.second)


Digests = Mapping[int, Digest]
"""Digests by range; a range that is missing has no rows."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of keys, in `number` classes. Only those in one of the classes `within`, modulo `of`, are compared (`of`
    1: all).

    `narrowings` says how often they were cut already.
    """

    number: int = 1
    of: int = 1
    within: frozenset[int] = field(default=frozenset({0}))
    narrowings: int = 0


@dataclass(frozen=True, slots=True)
class Unequal:
    """The ranges whose digests differ, and how many rows they have in the larger table."""

    ranges: Ranges
    differing: frozenset[int]
    rows: int

    def narrower(self) -> Ranges | None:
        """Return the ranges to compare next, or None if the rows of those that differ are to be read.

        Where most differ, finer ones would too: comparing them would be in vain.
        """
        compared = self.ranges.number // self.ranges.of * len(self.ranges.within)
        if self.rows <= ROWS_READ_MAX or self.ranges.narrowings >= NARROWINGS_MAX or 2 * len(self.differing) > compared:
            return None
        cuts = max(2, RANGES_MAX // len(self.differing))
        number = self.ranges.number * cuts
        return Ranges(number, self.ranges.number, self.differing, self.ranges.narrowings + 1)

    @property
    def to_read(self) -> Ranges:
        return Ranges(self.ranges.number, self.ranges.number, self.differing, self.ranges.narrowings)


def ranges_for(rows: int) -> Ranges:
    """Return as many ranges as a table of so many rows needs."""
    return Ranges(min(RANGES_MAX, max(1, ceil(rows / ROWS_PER_RANGE))))


def unequal(ranges: Ranges, source: Digests, target: Digests) -> Unequal:
    empty = Digest()
    differing = {each for each in source.keys() | target.keys() if source.get(each, empty) != target.get(each, empty)}
    rows = sum(max(source.get(each, empty).rows, target.get(each, empty).rows) for each in differing)
    return Unequal(ranges, frozenset(differing), rows)


def total(digests: Digests) -> Digest:
    return sum(digests.values(), Digest())
