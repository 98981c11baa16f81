"""A source whose rows may share a key, and what a change data feed shows of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from hypothesis import strategies as st

from iscp.model.rows.key_ranges import NET_OPS, Op

Row = tuple[int, str]
"""Key and value."""
Bag = Counter[Row]

KEYS, VALUES = range(3), "ab"


@dataclass(frozen=True, slots=True)
class Change:
    version: int
    kind: str
    key: int
    value: str

    @property
    def writes(self) -> bool:
        return self.kind in ("insert", "update_postimage")


@dataclass
class History:
    """`bags[v]` are the rows at version v; `feed` are all changes, in no order within a version."""

    bags: list[Bag] = field(default_factory=lambda: [Counter()])
    feed: list[Change] = field(default_factory=list)

    def commit(self, removed: Bag, updated: list[tuple[Row, Row]], inserted: Bag) -> None:
        """Rows that are removed or updated are those of the version before."""
        version = len(self.bags)
        before, after = Counter(old for old, _ in updated), Counter(new for _, new in updated)
        self.bags.append(self.bags[-1] - removed - before + after + inserted)
        kinds = (("insert", inserted), ("update_postimage", after), ("update_preimage", before), ("delete", removed))
        self.feed += [Change(version, kind, *row) for kind, rows in kinds for row in rows.elements()]

    def changes(self, begin: int, end: int) -> list[Change]:
        return [change for change in self.feed if begin < change.version <= end]

    def ranges(self) -> Iterator[tuple[int, int]]:
        return combinations(range(len(self.bags)), 2)


def history_of(draw: Random) -> History:
    """Of inserts, deletes, updates (of keys too) and merges that do several of these to one key in one version."""
    history = History()
    for _ in range(draw.randint(1, 5)):
        there = sorted(history.bags[-1].elements())
        some = draw.sample(there, draw.randint(0, len(there)))
        updates = draw.randint(0, len(some))
        inserted = Counter(_row(draw) for _ in range(draw.choice((0, 1, 1, 2))))
        history.commit(Counter(some[updates:]), [(row, _row(draw)) for row in some[:updates]], inserted)
    return history


def histories() -> st.SearchStrategy[History]:
    return st.builds(history_of, st.randoms(use_true_random=False))


def _row(draw: Random) -> Row:
    return draw.choice(KEYS), draw.choice(VALUES)


def key_of(row: Row) -> int:
    return row[0]


def sharing(bag: Bag) -> set[int]:
    """Keys that several rows have."""
    return {key for key, often in Counter(map(key_of, bag.elements())).items() if often > 1}


def net(changes: Sequence[Change]) -> dict[int, tuple[Op, str]] | None:
    """The operation, and the value where a row is left, of each key; None where one is in doubt."""
    by_key: defaultdict[int, list[Change]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: (change.version, change.writes)):
        by_key[change.key].append(change)
    found = {}
    for key, of_key in by_key.items():
        op = net_op(change.writes for change in of_key)
        if op is None:
            return None
        found[key] = op, left(op, of_key[-1].value)
    return found


def net_op(writes: Iterable[bool]) -> Op | None:
    """`writes`: of each change of a key, in order, whether it writes a row. None: rows share the key, or shared it."""
    changes = list(writes)
    rows = 0 if changes[0] else 1
    for change in changes:
        rows += 1 if change else -1
        if rows < 0:
            return None  # more were removed than one
    return NET_OPS[changes[0], changes[-1]] if rows == changes[-1] else None


def left(op: str, value: str) -> str:
    """The value that counts: of a key that is gone only the key does."""
    return value if op in (Op.INSERT, Op.UPDATE) else ""
