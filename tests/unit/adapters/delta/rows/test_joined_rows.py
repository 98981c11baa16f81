"""The changes of joins against a model: the join of the rows afterwards less that of the rows before, as bags."""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from iscp.adapters.delta.log.live_files import NotReadableHere
from iscp.adapters.delta.rows.joined_rows import changed_join, join_rows, meeting, net_rows
from iscp.core.query.join_query import Column, Equality, JoinedTable, JoinQuery, JoinStep, RowCondition
from iscp.core.sql.sql_names import WEIGHT

Row = tuple[int | None, str | None]
Bag = Counter[Row]
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])
COLUMNS = ("k", "s")
VALUES: tuple[Sequence[Any], ...] = ((None, 1, 2, 3), (None, "a", "b"))
CONDITIONS = (
    (),
    (RowCondition("k"),),
    (RowCondition("k", ">=", 2),),
    (RowCondition("s", "!=", "a"), RowCondition("k", "<", 3)),
)
SIGNS: Mapping[str, Callable[[Any, Any], bool]] = {"!=": operator.ne, "<": operator.lt, ">=": operator.ge}
MOST = 100_000


def random_query(draw: random.Random) -> JoinQuery:
    """One to four tables, each joined to one before it by one or two columns; some may be the same table again."""
    size = draw.randint(1, 4)
    tables = tuple(JoinedTable(f"t{draw.randrange(3)}", COLUMNS, draw.choice(CONDITIONS)) for _ in range(size))
    equalities = [
        Equality(Column(draw.randrange(place), name), Column(place, name))
        for place in range(1, size)
        for name in draw.choice([("k",), ("s",), ("k", "s")])
    ]
    outputs = [Column(draw.randrange(size), draw.choice(COLUMNS)) for _ in range(draw.randint(1, 4))]
    return JoinQuery(tables, tuple(equalities), tuple(outputs))


def random_bag(draw: random.Random, size: int) -> Bag:
    return Counter((draw.choice(VALUES[0]), draw.choice(VALUES[1])) for _ in range(size))


def meets(row: Row, conditions: Sequence[RowCondition]) -> bool:
    values: Any = dict(zip(COLUMNS, row, strict=True))
    return all(
        values[column] is not None and (not sign or SIGNS[sign](values[column], wanted))
        for column, sign, wanted in conditions
    )


def evaluate(query: JoinQuery, bags: Mapping[str, Bag]) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    sides = [[(row, n) for row, n in bags[each.name].items() if meets(row, each.conditions)] for each in query.tables]
    for rows in product(*sides):
        values = {
            Column(place, name): value
            for place, (row, _) in enumerate(rows)
            for name, value in zip(COLUMNS, row, strict=True)
        }
        if all(values[one] is not None and values[one] == values[other] for one, other in query.equalities):
            times = 1
            for _, n in rows:
                times *= n
            found[tuple(values[each] for each in query.outputs)] += times
    return found


def table_of(bag: Bag, *, weighted: bool = False) -> pa.Table:
    """`weighted`: each row with its number, one by one or together, as changes come."""
    rows = [(*row, 1 if n > 0 else -1) for row, n in bag.items() for _ in range(abs(n))]
    columns: Sequence[Any] = list(zip(*rows, strict=True)) if rows else ((), (), ())
    table = pa.table([pa.array(columns[0], pa.int64()), pa.array(columns[1], pa.string())], schema=SCHEMA)
    return table.append_column(WEIGHT, pa.array(columns[2], pa.int64())) if weighted else table


def bag_of(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    weights = rows[WEIGHT].to_pylist()
    values = zip(*(column.to_pylist() for column in rows.drop_columns([WEIGHT]).columns), strict=True)
    return Counter(dict(zip(values, weights, strict=True)))


@pytest.mark.parametrize("seed", range(300))
def test_changes_are_what_the_join_gives_afterwards_less_what_it_gave(seed: int) -> None:
    draw = random.Random(seed)
    query = random_query(draw)
    names = {each.name for each in query.tables}
    before = {name: random_bag(draw, draw.randrange(8)) for name in names}
    after, changes = {}, {}
    for name, bag in before.items():
        gone = Counter(draw.sample(sorted(bag.elements(), key=repr), draw.randrange(bag.total() + 1)))
        came = random_bag(draw, draw.randrange(4)) if draw.random() < 0.7 else Counter()
        after[name] = bag - gone + came
        changes[name] = pa.concat_tables(
            [table_of(came, weighted=True), table_of(Counter({row: -n for row, n in gone.items()}), weighted=True)]
        )

    def find(step: JoinStep, keys: pa.Table) -> pa.Table:
        """And others besides, as it may."""
        assert set(keys.schema.names) == {right.name for _, right in step.pairs}
        return table_of(after[query.tables[step.place].name])

    changed = {place: changes[each.name] for place, each in enumerate(query.tables) if len(changes[each.name])}
    if not changed:
        return
    rows = net_rows(changed_join(query, changed, find, MOST))
    expected = evaluate(query, after)
    expected.subtract(evaluate(query, before))
    assert bag_of(rows) == {row: n for row, n in expected.items() if n}


def test_more_rows_than_allowed_are_left_to_others() -> None:
    rows = pa.table({"a": [1] * 100})
    other = pa.table({"b": [1] * 100})
    assert len(join_rows(rows, other, [("a", "b")], 10_000)) == 10_000
    with pytest.raises(NotReadableHere):
        join_rows(rows, other, [("a", "b")], 9_999)


def test_a_null_meets_no_condition_but_those_that_there_are_none() -> None:
    rows = pa.table({"a": [None, 1, 2]})
    assert meeting(rows, [RowCondition("a", "!=", 1)])["a"].to_pylist() == [2]
    assert meeting(rows, [RowCondition("a")])["a"].to_pylist() == [1, 2]
    assert meeting(rows, [])["a"].to_pylist() == [None, 1, 2]
