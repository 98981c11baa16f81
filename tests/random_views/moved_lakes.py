"""Histories of the algebra's tables: rows come, go and are updated, with equal rows among them and keys that repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tests.fakes.algebras import CELLS, NAMES
from tests.fakes.ducks import Lake, Row

ROWS_MAX, CHANGED_MAX, COMMITS_MAX = 7, 3, 4

Change = tuple[str, Row]
"""A table's name, and a row with its weight as the last value."""


@dataclass(frozen=True, slots=True)
class Moved:
    """`lakes` are the states from the first on; `feeds` are what is between them, as change data feeds have it."""

    lakes: tuple[Lake, ...]
    feeds: tuple[tuple[Change, ...], ...]

    def feed(self, first: int, last: int) -> list[Change]:
        """The changes after the state `first`, up to the state `last`."""
        return [change for commit in self.feeds[first:last] for change in commit]


def history_of(random: Random) -> Moved:
    """Draws a history of one to three commits, each of one table or of both."""
    lakes, feeds = [{name: Counter(_rows(random, ROWS_MAX)) for name in NAMES}], []
    for _ in range(random.randint(1, COMMITS_MAX)):
        names = random.sample(NAMES, random.randint(1, len(NAMES)))
        feeds.append(tuple((name, row) for name in names for row in _commit(random, lakes[-1][name])))
        lakes.append(after(lakes[-1], feeds[-1]))
    return Moved(tuple(lakes), tuple(feeds))


def after(lake: Lake, changes: Sequence[Change]) -> Lake:
    """The rows after changes; what goes was there."""
    found = {name: Counter(rows) for name, rows in lake.items()}
    for name, (*row, weight) in changes:
        found[name][tuple(row)] += weight
    assert all(number >= 0 for rows in found.values() for number in rows.values()), "a feed takes what is there"
    return {name: +rows for name, rows in found.items()}


def by_table(changes: Sequence[Change]) -> Mapping[str, list[Row]]:
    """The changed rows of each table that has some."""
    return {name: rows for name in NAMES if (rows := [row for table, row in changes if table == name])}


def _rows(random: Random, most: int) -> list[Row]:
    """Rows of which one in three is a copy of another one but for a value, or for none."""
    found: list[Row] = []
    for _ in range(random.randint(0, most)):
        row = list(random.choice(found)) if found and random.random() < 0.3 else [*map(random.choice, CELLS)]
        if found and random.random() < 0.7:
            place = random.randrange(len(row))
            row[place] = random.choice(CELLS[place])
        found.append(tuple(row))
    return found


def _commit(random: Random, there: Counter[Row]) -> list[Row]:
    """Rows go, alone or all with one key, or are updated in one value; others come, some of them those that went."""
    rows = sorted(there.elements(), key=repr)
    gone = random.sample(rows, random.randint(0, min(CHANGED_MAX, len(rows))))
    if rows and random.random() < 0.2:
        key = random.choice(rows)[0]
        gone = [row for row in rows if row[0] == key]
    signed = [(*row, -1) for row in gone]
    for row in gone:
        if random.random() < 0.5:
            place = random.randrange(len(row))
            signed.append((*row[:place], random.choice(CELLS[place]), *row[place + 1 :], 1))
    return signed + [(*row, 1) for row in _rows(random, CHANGED_MAX)]
