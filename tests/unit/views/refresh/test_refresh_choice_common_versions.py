"""Views over random graphs of tables mix no versions of a table without saying so, and no wait of theirs is endless."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.views.refresh.refresh_choice import (
    Held,
    Mix,
    Stand,
    Stands,
    VersionChoice,
    choose_versions,
    common_versions,
    find_mix,
    merged_stands,
)

LIMIT_S = 10.0
STEPS_MAX = 40

# T has ten versions. A was refreshed at each of them, B at every second one.
A = {version: {"T": Stand(version, version)} for version in range(10)}
B = {version: {"T": Stand(2 * version, 2 * version)} for version in range(5)}
BY_HAND: Mapping[str, Mapping[int, Stands]] = {"a": A, "b": B, "t": A}


def stands_at(uri: str, version: int) -> Stands:
    return {uri.upper(): Stand(version, version), **BY_HAND[uri][version]}


def choose(
    newest: Mapping[str, int], floor: Mapping[str, int] | None, held: Mapping[str, Held], now_s: float
) -> VersionChoice:
    return choose_versions(newest, floor, stands_at, held, now_s, LIMIT_S)


def test_tables_that_stand_at_one_version_are_read_as_they_are() -> None:
    newest = {"a": 6, "b": 3}
    assert choose(newest, {"a": 0, "b": 0}, {}, 5.0) == VersionChoice(newest)


def test_a_table_that_is_ahead_is_read_as_it_was() -> None:
    choice = choose({"a": 7, "b": 3}, {"a": 2, "b": 1}, {}, 5.0)
    assert choice.versions == {"a": 6, "b": 3}
    assert (choice.waits, choice.wait_s, choice.held) == (True, LIMIT_S, {"a": Held(6, 5.0)})


def test_a_base_table_is_read_at_the_version_that_the_views_stand_at() -> None:
    choice = choose({"t": 9, "b": 3}, {"t": 1, "b": 0}, {}, 5.0)
    assert choice.versions == {"t": 6, "b": 3}


def test_a_view_waits_for_those_that_are_behind_and_names_them() -> None:
    choice = choose({"a": 5, "b": 2}, {"a": 5, "b": 1}, {}, 5.0)
    assert choice.versions is None
    assert choice.mix == Mix("T", {"a": Stand(5, 5), "b": Stand(4, 4)})
    assert (choice.mix.version, choice.mix.behind, choice.waits) == (4, ("b",), True)


def test_after_the_wait_it_is_refreshed_all_the_same() -> None:
    newest, floor = {"a": 7, "b": 2}, {"a": 4, "b": 2}
    first = choose(newest, floor, {}, 5.0)
    assert (first.versions, first.wait_s) == (floor, LIMIT_S)
    later = choose(newest, floor, first.held, 12.0)
    assert (later.waits, later.wait_s, later.held) == (True, 3.0, first.held)
    last = choose(newest, floor, later.held, 15.0)
    assert (last.versions, last.waits, last.held) == (newest, False, {})
    assert last.mix is not None


def test_a_table_that_is_read_at_a_later_version_is_waited_for_afresh() -> None:
    first = choose({"a": 5, "b": 2}, {"a": 2, "b": 1}, {}, 5.0)
    later = choose({"a": 7, "b": 3}, {"a": 4, "b": 2}, first.held, 14.0)
    assert (later.versions, later.held) == ({"a": 6, "b": 3}, {"a": Held(6, 14.0)})


@pytest.mark.parametrize("moved", [False, True])
def test_what_was_waited_for_in_vain_is_waited_for_again_when_it_has_moved(moved: bool) -> None:
    mixed = {"a": 5, "b": 1}
    choice = choose({"a": 8, "b": 2 if moved else 1}, mixed, {}, 5.0)
    assert (choice.mix is not None, choice.waits) == (True, moved)


def test_a_table_whose_own_rows_are_mixed_is_not_waited_for() -> None:
    mixed = {"T": merged_stands([A[5], B[2]])["T"]}
    assert mixed["T"] == Stand(5, 4)
    choice = choose_versions({"c": 1}, {"c": 0}, lambda uri, version: mixed, {}, 0.0, LIMIT_S)
    assert (choice.versions, choice.waits) == ({"c": 1}, False)
    assert choice.mix == Mix("T", {"c": Stand(5, 4)})


def test_a_first_build_waits_for_nothing_and_no_limit_means_no_wait() -> None:
    newest = {"a": 5, "b": 1}
    assert not choose(newest, None, {}, 0.0).waits
    assert not choose_versions(newest, {"a": 2, "b": 1}, stands_at, {}, 0.0, 0.0).waits


def test_versions_with_equal_data_are_one() -> None:
    optimized = {"a": {"T": Stand(4, 6)}, "b": {"T": Stand(6, 6)}}
    assert find_mix(optimized) is None
    assert find_mix({**optimized, "c": {"T": Stand(7, 7)}}) is not None


# --- random graphs ------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """A table. `commits` has for each version those of the tables that it was made of; empty for a base table."""

    reads: tuple[str, ...]
    commits: list[Mapping[str, int]] = field(default_factory=lambda: [{}])
    held: Mapping[str, Held] = field(default_factory=dict)
    waits_since_s: float | None = None


class World:
    """Tables and views, each of which reads tables before it."""

    def __init__(self, reads: list[list[int]], bases: int) -> None:
        self.now_s = 0.0
        self.nodes = {f"t{n}": Node(()) for n in range(bases)}
        for n, each in enumerate(reads):
            names = tuple(sorted({f"t{number % (bases + n)}" for number in each}))
            newest = {name: len(self.nodes[name].commits) - 1 for name in names}
            self.nodes[f"t{bases + n}"] = Node(names, [newest])

    def stands_at(self, name: str, version: int) -> Stands:
        made_of = self.nodes[name].commits[version]
        below = merged_stands(self.stands_at(each, at) for each, at in made_of.items())
        return {**below, name: Stand(version, version)}

    def choose(self, node: Node) -> VersionChoice:
        newest = {name: len(self.nodes[name].commits) - 1 for name in node.reads}
        return choose_versions(newest, node.commits[-1], self.stands_at, node.held, self.now_s, LIMIT_S)

    def refresh(self, name: str) -> None:
        node = self.nodes[name]
        if not node.reads:
            node.commits.append({})
            return
        choice, there = self.choose(node), node.commits[-1]
        node.held = choice.held
        stuck = choice.versions in (None, there) and choice.waits
        node.waits_since_s = (self.now_s if node.waits_since_s is None else node.waits_since_s) if stuck else None
        assert node.waits_since_s is None or self.now_s - node.waits_since_s < LIMIT_S
        assert all(self.now_s - each.since_s < LIMIT_S for each in node.held.values())
        if choice.versions is None or choice.versions == there:
            return
        assert all(there[uri] <= version for uri, version in choice.versions.items())
        node.commits.append(choice.versions)
        mixes = find_mix({uri: self.stands_at(uri, version) for uri, version in choice.versions.items()})
        assert (mixes is not None) == (choice.mix is not None and not choice.waits)
        assert mixes is not None or self.versions_below(name)

    def versions_below(self, name: str) -> bool:
        """Whether the view's rows are made of one version of each table, found by going all ways."""
        found: dict[str, set[int]] = {}
        ways = [(name, len(self.nodes[name].commits) - 1)]
        while ways:
            at, version = ways.pop()
            found.setdefault(at, set()).add(version)
            ways.extend(self.nodes[at].commits[version].items())
        return all(len(versions) == 1 for versions in found.values())


GRAPHS = st.tuples(
    st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=6), st.integers(1, 2)
)
STEPS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from([0.0, 0.5, 3.0])), max_size=STEPS_MAX)


@given(GRAPHS, STEPS)
def test_no_refresh_mixes_versions_without_saying_so_and_every_wait_ends(
    graph: tuple[list[list[int]], int], steps: list[tuple[int, float]]
) -> None:
    world = World(*graph)
    names = list(world.nodes)
    for number, passed_s in steps:
        world.now_s += passed_s
        world.refresh(names[number % len(names)])
        # Nodes check in time: a table that nobody refreshes stands for one whose job is paused.
        for name, node in world.nodes.items():
            if node.held and world.choose(node).wait_s <= passed_s:
                world.refresh(name)
    for name, node in world.nodes.items():
        if not node.reads:
            continue
        for _ in range(2):
            world.refresh(name)
            world.now_s += LIMIT_S
        world.refresh(name)
        assert node.commits[-1] == {each: len(world.nodes[each].commits) - 1 for each in node.reads}


@given(GRAPHS, st.lists(st.integers(0, 7), max_size=12))
def test_the_versions_are_the_newest_that_mix_nothing(graph: tuple[list[list[int]], int], steps: list[int]) -> None:
    world = World(*graph)
    names = list(world.nodes)
    for number in steps:
        world.refresh(names[number % len(names)])
    for node in world.nodes.values():
        newest = {name: len(world.nodes[name].commits) - 1 for name in node.reads}
        found = common_versions(newest, dict.fromkeys(node.reads, 0), world.stands_at)
        ranges = [range(newest[name] + 1) for name in node.reads]
        unmixed = [
            dict(zip(node.reads, versions, strict=True))
            for versions in itertools.product(*ranges)
            if find_mix({n: world.stands_at(n, v) for n, v in zip(node.reads, versions, strict=True)}) is None
        ]
        if found is None:
            assert not unmixed
        else:
            assert all(each[name] <= found[name] for each in unmixed for name in node.reads)
