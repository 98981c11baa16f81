"""In which order tables are joined, and of which choices of changed tables a join's changes are made up."""

from __future__ import annotations

from iscp.core.query.join_query import Column, Equality, JoinedTable, JoinQuery, JoinStep, choices

FACT, DIM, FAR = (JoinedTable(name, ("k",)) for name in ("fact", "dim", "far"))


def column(text: str) -> Column:
    place, name = text.split(".")
    return Column(int(place), name)


def joined(*equalities: str, tables: tuple[JoinedTable, ...] = (FACT, DIM, FAR)) -> JoinQuery:
    pairs = (Equality(*map(column, each.split("="))) for each in equalities)
    return JoinQuery(tables, tuple(pairs), (Column(0, "k"),))


def test_each_table_is_joined_by_all_that_leads_to_it() -> None:
    query = joined("0.a=1.a", "2.c=0.b", "1.d=2.d")
    assert list(query.steps({2})) == [
        JoinStep(0, ((column("2.c"), column("0.b")),)),
        JoinStep(1, ((column("0.a"), column("1.a")), (column("2.d"), column("1.d")))),
    ]
    assert [step.place for step in query.steps({0, 1})] == [2]


def test_a_table_to_which_nothing_leads_is_no_join_by_equality() -> None:
    assert joined("0.a=1.a", "1.b=2.b").connected
    assert not joined("0.a=1.a").connected
    assert joined(tables=(FACT,)).connected


def test_choices_of_an_odd_number_add_and_others_take_away() -> None:
    assert choices({0}) == [(1, (0,))]
    assert choices({2, 0, 1}) == [
        *((1, (each,)) for each in range(3)),
        *((-1, pair) for pair in [(0, 1), (0, 2), (1, 2)]),
        (1, (0, 1, 2)),
    ]
    assert choices(()) == []
