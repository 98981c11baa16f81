"""Ranges of a table's keys, and rules that go key by key: the tree of ranges, the ranges of key hashes by which a table
is split, the net change of a key, the comparison of two tables by digests of ranges, and the choice of files to merge.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import ceil
from typing import TypeVar

from iscp.model.sql.sql_names import quoted

# --- the tree of ranges -----------------------------------------------------------------------------------------------
# Ranges are cut in halves and put together again, whatever is in them (after ScyllaDB's tablets). They are a binary
# tree: 1 is the whole, n is cut into 2n and 2n+1, and those two are put together again as n.

WHOLE = 1


def depth_within(range_id: int, depth_max: int) -> int:
    """Return how often the whole was cut to get the range.

    Raises ValueError for what is no range, or was cut more than `depth_max` times.
    """
    if not WHOLE <= range_id < 2 << depth_max:
        raise ValueError(f"{range_id} is no range: they go from {WHOLE} to {(2 << depth_max) - 1}")
    return range_id.bit_length() - 1


def children(range_id: int) -> tuple[int, int]:
    return 2 * range_id, 2 * range_id + 1


def parent(range_id: int) -> int:
    return range_id // 2


def sibling(range_id: int) -> int:
    """Return the other half of its parent."""
    return range_id ^ 1


# --- ranges of key hashes ---------------------------------------------------------------------------------------------
# Which ranges a table may have, which overlap, and which keys are in one. The range 1 is the whole table. The highest
# bits of a key's hash, a signed number of 64 bits, say to which range the key belongs: in order of their hashes the
# ranges of one level lie side by side, so that a range is all hashes between a lowest and a highest.

RANGES_MAX = 64
"""Ranges of one table at a time; none is smaller than this part of it, and a split beyond it is refused."""

_BITS = 64


def depth(range_id: int) -> int:
    """Return how often the whole was cut to get the range; raise ValueError for what is no range."""
    return depth_within(range_id, RANGES_MAX.bit_length() - 1)


def may_split(range_id: int) -> bool:
    return 2 * range_id < 2 * RANGES_MAX


def overlaps(one: int, other: int) -> bool:
    """Return whether two ranges share keys: one is the other, or was cut from it."""
    low, high = sorted((one, other))
    return high >> (depth(high) - depth(low)) == low


def below(range_id: int) -> list[int]:
    """Return all ranges that may be cut from this one."""
    found, level = [], [range_id]
    while level := [child for each in level if may_split(each) for child in children(each)]:
        found += level
    return found


def above(range_id: int) -> list[int]:
    """Return the ranges that this one was cut from, the nearest first."""
    return [range_id >> steps for steps in range(1, depth(range_id) + 1)]


def overlapping(range_id: int) -> list[int]:
    """Return all other ranges that share keys with this one."""
    return [*above(range_id), *below(range_id)]


def deepest(ranges: Collection[int]) -> list[int]:
    """Return the parents of the smallest of a table's ranges; those are always there in pairs."""
    low = max(map(depth, ranges))
    return sorted({parent(each) for each in ranges if depth(each) == low}) if low else []


def hashes(range_id: int) -> tuple[int, int]:
    """Return the lowest and the highest hash of its keys."""
    width = 1 << (_BITS - depth(range_id))
    low = -(1 << (_BITS - 1)) + (range_id - (1 << depth(range_id))) * width
    return low, low + width - 1


def parts(range_id: int, count: int) -> range:
    """Return the parts with keys of the range, of `count` equal parts of all hashes (a power of two)."""
    levels = count.bit_length() - 1 - depth(range_id)
    place = range_id - (1 << depth(range_id))
    return (
        range(place << levels, (place + 1) << levels)
        if levels >= 0
        else range(place >> -levels, (place >> -levels) + 1)
    )


def holds(range_id: int, key_hash: int) -> bool:
    low, high = hashes(range_id)
    return low <= key_hash <= high


def hash_sql(key: Sequence[str]) -> str:
    """Return SQL for the hash of a row's key, as Spark computes it in UTC.

    Keys that are equal have one hash, also when their type was widened between: numbers count by their value as
    doubles, and so do texts that are one; a date by itself is its midnight.
    """
    return f"xxhash64({', '.join(part for name in key for part in _canonical(quoted(name)))})"


def _canonical(column: str) -> tuple[str, str]:
    text = f"CAST({column} AS STRING)"
    return f"try_cast({text} AS DOUBLE)", f"IF(try_cast({text} AS DOUBLE) IS NULL, replace({text}, ' 00:00:00'), NULL)"


def condition_sql(key: Sequence[str], range_id: int) -> str:
    """Return the condition, in Spark's SQL, that rows of the range meet; empty: all do."""
    if range_id == WHOLE:
        return ""
    low, high = hashes(range_id)
    return f"{hash_sql(key)} BETWEEN {low}L AND {high}L"


# --- net changes of a key ---------------------------------------------------------------------------------------------
# The changes of one key in a range of versions come to one operation. Arrow and Spark both carry out this one
# definition.
#
# A table is a bag of rows: several of them may have one key. The changes of a key, in order of version and in one
# version removals before writes, are counted as if the key had one row before where the first of them removes, and none
# where it writes. If none is left, the key is gone, whatever there was between. If one is left, and the last change
# wrote it, it is that one: the version that wrote it has removed all others. If one is left and the last change removed
# another, or if there are more, rows share the key, or shared it; which of them is left does not follow from the
# changes, only from the source's rows. Values are never compared, so that this is true for all types.
#
# A row that was there before the range and stays there shows in no change. So each operation also says how many rows
# the key had before, and is valid only if that is so. Whoever applies an operation has to check that against a target
# that has a key's row, or against the source as it is after the range.


class Op(StrEnum):
    """An operation on a key: it leads from how many rows to how many."""

    INSERT = "i"
    """The key has no row before, and one after."""
    UPDATE = "u"
    """The key has one row before and after."""
    DELETE = "d"
    """The key has one row before, and none after."""
    PASSED = "p"
    """The key has no row before and after: it came and went. A row that the key has is not the row it was."""


NET_OPS: Mapping[tuple[bool, bool], Op] = {
    (True, True): Op.INSERT,
    (False, True): Op.UPDATE,
    (False, False): Op.DELETE,
    (True, False): Op.PASSED,
}
"""The operation by whether the first change of a key writes, and whether the last one does."""

ABSENT_BEFORE = (Op.INSERT, Op.PASSED)
ABSENT_AFTER = (Op.DELETE, Op.PASSED)


# --- differences of two tables by digests -----------------------------------------------------------------------------
# A range is here a class of keys: those whose hash leaves one remainder modulo the number of ranges. Twice as many
# ranges are halves of the former ones, so that what differs can be narrowed without storing anything.
#
# How sure is a comparison? A range's digest is its number of rows and the exact sums of two 64-bit hashes of each row.
# Sums do not depend on the rows' order, and a row that is there twice counts twice, which it would not in an exclusive
# or. If the rows of a range differ as multisets, some row's hash has one value at the most for which the sums agree: by
# chance that is 1 of 2^64 for one hash, and about 1 of 2^128 for both. That is beyond what disks and memory promise.
# The hashes are not cryptographic: who writes a target in order to deceive can find rows that seem equal.

ROWS_PER_RANGE = 20_000
"""Rows in a range of keys when tables are compared; the ranges are as many as that takes, up to COMPARED_RANGES_MAX."""

COMPARED_RANGES_MAX = 4_096
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
        cuts = max(2, COMPARED_RANGES_MAX // len(self.differing))
        number = self.ranges.number * cuts
        return Ranges(number, self.ranges.number, self.differing, self.ranges.narrowings + 1)

    @property
    def to_read(self) -> Ranges:
        return Ranges(self.ranges.number, self.ranges.number, self.differing, self.ranges.narrowings)


def ranges_for(rows: int) -> Ranges:
    """Return as many ranges as a table of so many rows needs."""
    return Ranges(min(COMPARED_RANGES_MAX, max(1, ceil(rows / ROWS_PER_RANGE))))


def unequal(ranges: Ranges, source: Digests, target: Digests) -> Unequal:
    empty = Digest()
    differing = {each for each in source.keys() | target.keys() if source.get(each, empty) != target.get(each, empty)}
    rows = sum(max(source.get(each, empty).rows, target.get(each, empty).rows) for each in differing)
    return Unequal(ranges, frozenset(differing), rows)


def total(digests: Digests) -> Digest:
    return sum(digests.values(), Digest())


# --- data files to merge ----------------------------------------------------------------------------------------------
# Data files are rewritten with a commit of few changed rows, as in a log-structured merge tree. Each such commit leaves
# a small file and marks rows of others as gone. Without an end to that a reader would open ever more files for ever
# fewer rows. The class of a file follows from the rows that are left in it; as soon as there are too many files of one
# class they become one of the next, so that a row is rewritten once a class, and not once a commit.

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
