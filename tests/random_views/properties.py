"""Two properties of refreshes that need no engine to compare with: `python -m tests.random_views.properties`.

Over random queries of the algebra and random histories of their tables, carried out by DuckDB without Spark:

- commuting: one refresh over the first n commits gives what n refreshes give, for each n above 1.
- splitting: the changes are divided into those whose rows make a random condition true, false and null. Refreshed part
  by part, in any order, which each table has of its own, they give what one refresh gives.

Each holds for all ways of a refresh: changed rows with their weights, rows of touched keys, and stored sums. What goes
has to be there, and all ways give the same rows. `--seeds 100000` plays as many, from `--first` on, and no further one
is begun after `--minutes`; `--seed 17` plays that one and shows it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from multiprocessing import Pool
from random import Random
from typing import Any

from iscp.algebra.algebra import Expr, Group, Project, Rel, Table, TableRows
from iscp.algebra.algebra_codec import algebra_document
from iscp.algebra.change_plan import GROUP_ROWS, ChangePlan, GroupTotals, SummedRows, TouchedRows, key_columns
from iscp.algebra.duck_text import identifier, leaf_name
from iscp.model.sql.sql_names import WEIGHT
from tests.fakes.algebras import FIELDS, NAMES, Drawn, number
from tests.fakes.ducks import Bag, Ducks, Lake, Row
from tests.random_views.moved_lakes import COMMITS_MAX, Change, Moved, after, by_table, history_of
from tests.random_views.row_bags import difference

TRUTHS = (True, False, None)
DEPTHS = (1, 2, 2, 3, 3, 4)
"""Operators that a query has above each other at most."""

COUNTED_SHARE = 0.2
"""Queries that have groups at the top which follow from stored sums."""

TABLES_MAX = 2 * COMMITS_MAX + len(TRUTHS) + 2
"""Tables of stored sums that a case has at a time."""

SUMMARY_EVERY, CHUNK = 1_000, 10
COMMAND = ".venv/bin/python -m tests.random_views.properties"


@dataclass(frozen=True, slots=True)
class Case:
    """`orders`: of each table in which order the parts come for which its condition is true, false and null."""

    query: Rel
    moved: Moved
    conditions: dict[str, tuple[Table, Expr]]
    orders: dict[str, tuple[bool | None, ...]]

    def shown(self) -> str:
        lines = [json.dumps(algebra_document(self.query))]
        lines += [f"{name}: {sorted(rows.elements(), key=repr)}" for name, rows in self.moved.lakes[0].items()]
        lines += [f"commit: {each}" for each in self.moved.feeds]
        parts = [
            f"{name} by {condition} in the order {self.orders[name]}"
            for name, (_, condition) in self.conditions.items()
        ]
        return "\n".join([*lines, *parts])


def case_of(seed: int) -> Case:
    random = Random(seed)
    drawn, depth = Drawn(random), random.choice(DEPTHS)
    query = drawn.counted(depth - 1) if random.random() < COUNTED_SHARE else drawn.relation(depth)
    tables = {name: Table((), tuple(drawn.column(*each) for each in FIELDS), name) for name in NAMES}
    conditions = {name: (table, drawn.condition(table)) for name, table in tables.items()}
    orders = {name: tuple(random.sample(TRUTHS, len(TRUTHS))) for name in NAMES}
    return Case(query, history_of(random), conditions, orders)


@dataclass(frozen=True, slots=True)
class Ways:
    """How a query's rows follow changes of some tables."""

    net: Rel | None
    keyed: TouchedRows | None
    summed: SummedRows | None

    @classmethod
    def of(cls, query: Rel, changed: Iterable[str]) -> Ways:
        net, keyed, summed = (ChangePlan(query, changed) for _ in range(3))
        return cls(net.net_rows(), keyed.keyed_rows(), summed.summed_rows())


@dataclass(frozen=True, slots=True)
class Kept:
    """A view's rows as each way keeps them, and the name of the table of its stored sums, where it has some."""

    bags: dict[str, Bag]
    sums: str | None


Refresh = Callable[[Kept, Lake, Sequence[Change]], Kept]


class WrongRowsError(Exception):
    """What a refresh gives is not what it should: the message says where, and has the rows."""


@dataclass
class PropertyCheck:
    """Of cases, one after the other, in one DuckDB."""

    ducks: Ducks = field(default_factory=Ducks)
    refreshes: Counter[str] = field(default_factory=Counter)
    """Refreshes by the way that they went."""
    tables: int = 0

    def check(self, case: Case) -> dict[str, str]:
        """What is wrong, by the property that does not hold."""
        kept = self._first(case.query, case.moved.lakes[0])
        planned: dict[frozenset[str], Ways] = {}

        def refreshed(kept: Kept, old: Lake, changes: Sequence[Change]) -> Kept:
            feed = by_table(changes)
            names = frozenset(feed)
            if names not in planned:
                planned[names] = Ways.of(case.query, names)
            self.ducks.move(old, after(old, changes), feed)
            return self._refreshed(case.query, planned[names], kept)

        wrong = {}
        for name, property_ in (("commuting", self._commuting), ("splitting", self._splitting)):
            try:
                property_(case, kept, refreshed)
            except Exception as error:  # noqa: BLE001  # whatever a plan raises is what is wrong with it
                wrong[name] = f"{type(error).__name__}: {error}"
        return wrong

    def _commuting(self, case: Case, first: Kept, refreshed: Refresh) -> None:
        moved, lakes = case.moved, case.moved.lakes
        each = refreshed(first, lakes[0], moved.feed(0, 1))
        for commits in range(2, len(lakes)):
            each = refreshed(each, lakes[commits - 1], moved.feed(commits - 1, commits))
            _same(f"{commits} commits", refreshed(first, lakes[0], moved.feed(0, commits)), each)

    def _splitting(self, case: Case, kept: Kept, refreshed: Refresh) -> None:
        changes, lake = case.moved.feed(0, len(case.moved.feeds)), case.moved.lakes[0]
        whole = refreshed(kept, lake, changes)
        for part in self._parts(case, changes):
            kept, lake = refreshed(kept, lake, part), after(lake, part)
        _same("three parts", whole, kept)

    def _parts(self, case: Case, changes: Sequence[Change]) -> list[list[Change]]:
        """The changes by the place that their rows' truth has in the order of their table."""
        truths: dict[Change, bool | None] = {}
        for name, rows in by_table(changes).items():
            table, condition = case.conditions[name]
            self.ducks.put(f"new:{name}", {row[:-1] for row in rows}, FIELDS)
            items = (*(each.value for each in table.fields), Expr("Alias", (condition,), "boolean", (0, "truth")))
            truths |= {(name, row[:-1]): row[-1] for row in self.ducks.rows(Project((table,), items))}
        places = range(len(TRUTHS))
        at = [case.orders[name].index(truths[name, row[:-1]]) for name, row in changes]
        return [[each for each, here in zip(changes, at, strict=True) if here == place] for place in places]

    # --- refreshes ----------------------------------------------------------------------------------------------------

    def _first(self, query: Rel, lake: Lake) -> Kept:
        self.ducks.have(lake, lake)
        rows = self.ducks.bag(query)
        bags = {"net": rows, "keyed": rows}
        summed = ChangePlan(query, NAMES).summed_rows()
        if summed is None:
            return Kept(bags, None)
        top = query
        while not isinstance(top, Group):
            (top,) = top.inputs
        plan = ChangePlan(top.inputs[0], NAMES)
        sums = GroupTotals.of(top, Table((), (), "sums", TableRows.STATE), plan.ids)
        assert sums is not None
        there = plan.rows(top.inputs[0], TableRows.NEW)
        one = Expr("Alias", (number(1),), "long", (plan.weight.id, WEIGHT))
        weighted = Project((there,), (*(each.value for each in there.columns), one))
        names = [each.name for each in sums.rows.fields]
        return Kept(bags | {"summed": rows}, self._table(self.ducks.text(sums.moved(weighted, plan.weight), names)))

    def _refreshed(self, query: Rel, ways: Ways, kept: Kept) -> Kept:
        if ways.net is None:
            return kept
        net, sums = _moved(kept.bags["net"], self.ducks.rows(ways.net)), kept.sums
        bags = dict.fromkeys(kept.bags, net)  # so goes a view where its own way is not there for what has changed
        if ways.keyed is not None:
            bags["keyed"] = self._replaced(query, ways.keyed, kept.bags["keyed"])
        if ways.summed is not None and sums is not None:
            sums = self._summed(ways.summed, sums)
            bags["summed"] = self._replaced(query, ways.summed.touched, kept.bags["summed"])
        self.refreshes.update({"net", *({"keyed"} if ways.keyed else ()), *({"summed"} if ways.summed else ())})
        return Kept(bags, sums)

    def _replaced(self, query: Rel, touched: TouchedRows, rows: Bag) -> Bag:
        """The rows with those of touched keys in the place of those there were."""
        ids = [each.id for each in query.columns]
        places = [ids.index(each.id) for each in touched.keys.columns]
        keys = {tuple(map(_key, row)) for row in self.ducks.rows(touched.keys)}
        left = {row: n for row, n in rows.items() if tuple(_key(row[place]) for place in places) not in keys}
        return Counter(left) + self.ducks.bag(touched.rows)

    def _summed(self, summed: SummedRows, sums: str) -> str:
        """Makes what comes of the stored sums leaves, and returns the name of the table of the sums from now on."""
        self.ducks.leaves[leaf_name(summed.stored)] = f"FROM {sums}"
        for rows, leaf in (summed.moved, summed.now):
            self.ducks.keep(leaf, rows)
        now = identifier(leaf_name(summed.now[1]))
        same = " AND ".join(
            f"s.{key} IS NOT DISTINCT FROM n.{key}" for key in key_columns(len(summed.touched.keys.columns))
        )
        return self._table(f"FROM {sums} s ANTI JOIN {now} n ON {same} UNION ALL FROM {now} WHERE {GROUP_ROWS} > 0")

    def _table(self, text: str) -> str:
        self.tables += 1
        self.ducks.database.execute(f"CREATE OR REPLACE TEMP TABLE sums{self.tables % TABLES_MAX} AS {text}")
        return f"sums{self.tables % TABLES_MAX}"


def _key(value: Any) -> Any:
    """A value of a key, of which zeros of two signs are one."""
    return "0.0" if value == "-0.0" else value


def _moved(rows: Bag, weighted: Iterable[Row]) -> Bag:
    """The rows with changes, each of which is there once, and takes what is there."""
    found, seen = Counter(rows), Counter[Row]()
    for *row, weight in weighted:
        found[tuple(row)] += weight
        seen[tuple(row)] += 1
    wrong = {row for row, times in seen.items() if times > 1 or found[row] < 0}
    if wrong:
        raise WrongRowsError(f"changes take rows that are not there, or have one twice: {wrong}")
    return +found


def _same(where: str, one: Kept, other: Kept) -> None:
    """Raises WrongRowsError unless both have the same rows in all ways."""
    wanted = one.bags["net"]
    for times, kept in (("one refresh", one), ("several", other)):
        for way, rows in kept.bags.items():
            if rows != wanted:
                raise WrongRowsError(f"{where}: {way} of {times} against net of one\n{difference(wanted, rows)}")


@dataclass
class Played:
    """`failed`: of each property the seeds for which it does not hold."""

    number: int = 0
    failed: dict[str, list[int]] = field(default_factory=dict)
    refreshes: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        return f"{self.number} played, failed: {self.failed}, refreshes by way: {dict(self.refreshes)}\n"


Outcome = tuple[int, dict[str, str], Counter[str]]
"""A seed, what is wrong by property, and the seed's refreshes by way."""


@cache
def _process_check() -> PropertyCheck:
    return PropertyCheck()


def played_seed(seed: int, until_s: float = float("inf")) -> Outcome | None:
    """None: by the monotonic clock it is too late to begin."""
    if time.monotonic() > until_s:
        return None
    check = _process_check()
    check.refreshes.clear()
    return seed, check.check(case_of(seed)), Counter(check.refreshes)


def summed_up(outcomes: Iterable[Outcome | None]) -> Played:
    """Shows the seeds that fail as they come."""
    played = Played()
    for seed, wrong, refreshes in filter(None, outcomes):
        for name, why in wrong.items():
            played.failed.setdefault(name, []).append(seed)
            sys.stdout.write(f"{name} does not hold: {why}\n")
        if wrong:
            sys.stdout.write(f"{case_of(seed).shown()}\nreplay: {COMMAND} --seed {seed}\n")
        played.number += 1
        played.refreshes += refreshes
        if played.number % SUMMARY_EVERY == 0:
            sys.stdout.write(played.summary())
            sys.stdout.flush()
    return played


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_views.properties", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="and then no further seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds) if options.seed is None else [options.seed]
    until_s = time.monotonic() + 60 * options.minutes
    if options.seed is not None:
        sys.stdout.write(f"{case_of(options.seed).shown()}\n")
    with Pool(options.processes) as pool:
        played = summed_up(pool.imap_unordered(partial(played_seed, until_s=until_s), seeds, CHUNK))
    sys.stdout.write(played.summary())
    return 1 if played.failed else 0


if __name__ == "__main__":
    sys.exit(main())
