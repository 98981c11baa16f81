"""The shrinker of random views: what it tries, and that it ends with the smallest case that fails."""

from __future__ import annotations

from dataclasses import dataclass

from tests.random_views.cases import Case, case_of
from tests.random_views.query_tree import Joined, NoQueryError, Relation
from tests.random_views.shrinking import shrink, smaller


@dataclass(frozen=True, slots=True)
class Leaf:
    number: int = 0


@dataclass(frozen=True, slots=True)
class Pair(Leaf):
    left: Leaf = Leaf()
    right: Leaf | None = None
    flags: tuple[bool, ...] = ()


def leaves(tree: Leaf | None) -> int:
    if not isinstance(tree, Pair):
        return int(tree is not None)
    return leaves(tree.left) + leaves(tree.right)


def test_parts_of_a_tree_take_its_place() -> None:
    tree = Pair(3, Leaf(1), Leaf(2))
    found = list(smaller(tree))
    assert found[:2] == [Leaf(1), Leaf(2)]
    assert Pair(0, Leaf(1), Leaf(2)) in found
    assert Pair(3, Leaf(1), None) in found


def test_halves_of_a_tuple_go_before_its_elements() -> None:
    assert list(smaller((4, 0)))[:4] == [(), (0,), (4,), (0, 0)]


def test_what_is_smallest_has_nothing_smaller() -> None:
    assert list(smaller(Pair(0, Leaf(), None, ()))) == [Leaf()]
    assert list(smaller((0, False, "text", None))) == [
        (),
        ("text", None),
        (0, False),
        (False, "text", None),
        (0, "text", None),
        (0, False, None),
        (0, False, "text"),
    ]


def test_the_smallest_that_fails_is_found() -> None:
    tree = Pair(9, Pair(4, Leaf(7), Pair(1, Leaf(6), Leaf(3))), Leaf(5), (True, True))
    least = shrink(tree, lambda each: leaves(each) >= 2, 1000)
    assert (leaves(least), list(filter(lambda each: leaves(each) >= 2, smaller(least)))) == (2, [])


def test_nothing_is_tried_twice_nor_more_often_than_may_be() -> None:
    tried: list[tuple[int, ...]] = []

    def fails(numbers: tuple[int, ...]) -> bool:
        tried.append(numbers)
        return sum(numbers) > 20

    shrink((9, 9, 9, 9), fails, 1000)
    assert len(set(tried)) == len(tried)
    tried.clear()
    shrink((9, 9, 9, 9), fails, 5)
    assert len(tried) == 5


def joins(tree: Relation) -> bool:
    return isinstance(tree, Joined) or any(joins(each) for each in smaller(tree) if isinstance(each, Relation))


def test_a_case_with_a_join_shrinks_to_a_join_of_tables_and_is_a_query_all_the_way() -> None:
    case = next(each for each in map(case_of, range(100)) if isinstance(each.query, Joined) and len(each.sql) > 500)
    queries: list[str] = []

    def fails(less: Case) -> bool:
        try:
            queries.append(less.sql)
        except NoQueryError:
            return False
        return isinstance(less.query, Joined)

    least = shrink(case, fails, 20_000)
    assert least.query == Joined()
    assert (least.refreshes, [len(table.columns) for table in least.tables]) == ((), [1])
    assert len(queries) > 10


def test_a_seed_always_gives_the_same_case() -> None:
    assert case_of(17) == case_of(17)
    assert len({case_of(seed) for seed in range(200)}) == 200
