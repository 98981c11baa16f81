"""Queries of the algebra over lakes of few rows, computed by DuckDB: each leaf is a part of a statement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import duckdb
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from iscp.algebra.algebra import Rel, Table
from iscp.algebra.change_plan import ChangePlan
from iscp.algebra.duck_text import identifier, leaf_name, translate
from iscp.algebra.lookup_plan import ComputedStep, LookupStep
from iscp.model.sql.sql_names import WEIGHT
from tests.fakes.algebras import FIELDS, NAMES, ROWS

Row = tuple[Any, ...]
Bag = Counter[Row]
Lake = dict[str, Bag]
"""The rows of each table."""

LAKES = st.fixed_dictionaries({name: ROWS.map(Counter) for name in NAMES})


KINDS = {"long": "BIGINT", "string": "VARCHAR", "double": "DOUBLE"}


def _constant(value: Any, kind: str) -> str:
    return f"CAST({'NULL' if value is None else repr(value)} AS {KINDS[kind]})"


class Ducks:
    """A DuckDB in which leaves are the rows of lakes: each is a part of the statement."""

    def __init__(self) -> None:
        self.database = duckdb.connect(config={"threads": 1})
        self.leaves: dict[str, str] = {}

    def put(self, name: str, rows: Iterable[Row], fields: Sequence[tuple[str, str]]) -> None:
        kinds, names = zip(*[(kind, name) for name, kind in fields], strict=True)
        texts = [f"({', '.join(map(_constant, row, kinds))})" for row in rows]
        never = "" if texts else " WHERE FALSE"
        values = ", ".join(texts) or f"({', '.join(_constant(None, kind) for kind in kinds)})"
        self.leaves[name] = f"SELECT * FROM (VALUES {values}) t({', '.join(names)}){never}"

    def have(self, old: Lake, new: Lake) -> None:
        changed = {name: {row: new[name][row] - old[name][row] for row in {*old[name], *new[name]}} for name in NAMES}
        feed = {
            name: [(*row, weight) for row, weight in changes.items() if weight] for name, changes in changed.items()
        }
        self.move(old, new, feed)

    def move(self, old: Lake, new: Lake, feed: Mapping[str, Iterable[Row]]) -> None:
        """The changes are those of a feed, a row perhaps several times: each with its weight."""
        for name in NAMES:
            self.put(f"old:{name}", old[name].elements(), FIELDS)
            self.put(f"new:{name}", new[name].elements(), FIELDS)
            self.put(f"changes:{name}", feed.get(name, ()), (*FIELDS, (WEIGHT, "long")))

    def text(self, relation: Rel, names: Sequence[str] = ()) -> str:
        translation = translate(relation, names or [f"r{place}" for place in range(len(relation.columns))])
        assert translation.text is not None, translation.gaps
        return self._with_leaves(translation.text.removeprefix("WITH "), ", ")

    def _with_leaves(self, text: str, then: str) -> str:
        leaves = [f'"{name}" AS ({part})' for name, part in self.leaves.items() if name in text]
        return f"WITH {', '.join(leaves)}{then if leaves else ''}{text}" if leaves or then == ", " else text

    def rows(self, relation: Rel) -> list[Row]:
        """Doubles are text, as those of lakes."""
        found = self.database.execute(self.text(relation)).fetchall()
        return [tuple(repr(each) if isinstance(each, float) else each for each in row) for row in found]

    def keep(self, leaf: Table, relation: Rel) -> None:
        """Makes the relation's rows those of a leaf."""
        self._keep(leaf, self.text(relation, [each.name for each in leaf.fields]))

    def _keep(self, leaf: Table, text: str) -> None:
        self.database.execute(f"CREATE OR REPLACE TEMP TABLE {identifier(leaf_name(leaf))} AS {text}")

    def step(self, step: ComputedStep | LookupStep) -> None:
        """Takes a step of a plan of lookups; all that is looked up is found by its keys alone."""
        if isinstance(step, ComputedStep):
            self.keep(step.into, step.rows)
            return
        source, keys = (identifier(leaf_name(each)) for each in (step.source, step.keys))
        same = " AND ".join(f"s.{identifier(a)} IS NOT DISTINCT FROM k.{identifier(b)}" for a, b in step.pairs)
        found = f"SELECT * FROM {source} s WHERE EXISTS (SELECT 1 FROM {keys} k WHERE {same})"
        self._keep(step.into, self._with_leaves(found, " "))

    def bag(self, root: Rel) -> Bag:
        return Counter(self.rows(root))

    def net(self, root: Rel, old: Lake, new: Lake, changed: Iterable[str] = NAMES) -> dict[Row, int]:
        self.have(old, new)
        found = ChangePlan(root, changed).net_rows()
        rows = [] if found is None else self.rows(found)
        net = {row[:-1]: row[-1] for row in rows}
        assert len(net) == len(rows), "each row once"
        return net


DUCKS = Ducks()


def applied(bag: Bag, net: Mapping[Row, int]) -> Bag:
    found = Counter(bag)
    for row, weight in net.items():
        found[row] += weight
    assert all(number >= 0 for number in found.values()), "what goes was there"
    return +found


def all_rows(root: Rel, lake: Lake) -> Bag:
    DUCKS.have(lake, lake)
    return DUCKS.bag(root)


Test = TypeVar("Test", bound=Callable[..., None])
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]


def some(examples: int) -> Callable[[Test], Test]:
    return settings(max_examples=examples, deadline=None, suppress_health_check=SLOW)
