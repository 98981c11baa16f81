"""A run that is killed at any failpoint that it passes is gone on with by the next one, for each kind of job.

Which failpoints there are is found out by a run that passes them unhurt.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path

import pytest

import iscp
from tests.e2e.killed_runs import KINDS, World, nth_of_each, programs
from tests.selection import in_full

NEVER_PASSED = {
    **dict.fromkeys(
        ("deletion.began", "deletion.beside_gone", "deletion.log_gone", "deletion.over", "deletion.rows_gone"),
        "of targets that end with their jobs, which only a cluster has: test_target_deletion.py dies there",
    ),
    "*.rewrite": "a commit is written again only after its sync has failed",
    "feed.turn": "of writers that take turns by a lock in etcd; jobs are the only writers of their feeds",
    "keep.before": "commits are retained beside the job log, which no run has",
    "keep.counted": "commits are retained beside the job log, which no run has",
    "keep.staged": "commits are retained beside the job log, which no run has",
    "log.claim": "of the job log, which no run has",
    "log.commit": "of the job log, which no run has",
    "log.committed": "of the job log, which no run has",
    "log.look": "of the job log, which no run has",
    "range.before": "first snapshots are built by ranges on several machines of a cluster only",
    "range.counted": "first snapshots are built by ranges on several machines of a cluster only",
    "range.staged": "first snapshots are built by ranges on several machines of a cluster only",
}
"""The failpoints that no run passes, and why."""

UPKEEP = "maintain."
"""The beginning of those of the upkeep of indexes, which only a watch does; test_maintenance_kills.py kills there."""

DIRECT = [kind.name for kind in KINDS if not kind.needs_spark]
BY_SPARK = "feed and views"
"""The kind of jobs that Spark builds; small changes of it need none."""


class Stage(StrEnum):
    """What a run has to do."""

    BUILD = "build"
    CHANGE = "change"


EACH_TIME = [("keyed", Stage.BUILD), ("keyed", Stage.CHANGE), ("index", Stage.CHANGE)]


@dataclass(frozen=True)
class Played:
    """A world that is saved where a run has something to do, and the failpoints that an unhurt run has passed then."""

    world: World
    passed: list[str]

    def assert_gone_on_with(self, place: str, *, java: bool = False) -> None:
        self.world.restore()
        self.world.assert_gone_on_with(place, java=java)


Play = Callable[[str, Stage], Played]


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """A function that plays a kind's run once, unhurt."""
    root = tmp_path_factory.mktemp("runs")

    @cache
    def played(name: str, stage: Stage) -> Played:
        (kind,) = (each for each in KINDS if each.name == name)
        world = World(kind, root / f"{name}-{stage}", started)
        if stage is Stage.CHANGE:
            world.run(java=kind.needs_spark)
            world.assert_right()
            world.change()
        world.save()
        return Played(world, world.passed(java=kind.needs_spark and stage is Stage.BUILD))

    with programs() as started:
        yield played


@pytest.mark.parametrize(("kind", "stage"), in_full(product(DIRECT, Stage), EACH_TIME, unpack=True))
@pytest.mark.slow(but=2)
def test_a_run_is_gone_on_with_wherever_it_was_killed(play: Play, kind: str, stage: Stage) -> None:
    played = play(kind, stage)
    for place in nth_of_each(played.passed):
        played.assert_gone_on_with(place)


@pytest.mark.spark
@pytest.mark.parametrize("each_time", in_full([False, True]))
@pytest.mark.slow
def test_small_changes_of_feeds_and_views_are_gone_on_with_wherever_their_run_was_killed(
    play: Play, each_time: bool
) -> None:
    """There is a feed, a view by groups and one by joins; each time at what no replica passes, and before commits."""
    played = play(BY_SPARK, Stage.CHANGE)
    places: Iterable[str] = nth_of_each(played.passed)
    if not each_time:
        of_replicas = {*play("keyed", Stage.CHANGE).passed} - {"commit.before"}
        last = {place.rsplit(":", 1)[0]: place for place in places}
        places = [place for name, place in last.items() if name not in of_replicas]
    for place in places:
        played.assert_gone_on_with(place)


@pytest.mark.spark
@pytest.mark.full
@pytest.mark.timeout(3_600)
def test_builds_of_feeds_and_views_are_gone_on_with_wherever_their_run_was_killed(play: Play) -> None:
    played = play(BY_SPARK, Stage.BUILD)
    for place in nth_of_each(played.passed):
        played.assert_gone_on_with(place, java=True)


@pytest.mark.spark
@pytest.mark.slow
def test_each_failpoint_is_passed_by_some_run_or_is_known_not_to_be(play: Play) -> None:
    passed = {name for kind in DIRECT for stage in Stage for name in play(kind, stage).passed}
    passed |= set(play(BY_SPARK, Stage.CHANGE).passed)
    missed = {known for known in failpoints_of_code() if not any(fnmatchcase(name, known) for name in passed)}
    assert {name for name in missed if not name.startswith(UPKEEP)} == set(NEVER_PASSED)


def failpoints_of_code() -> set[str]:
    """Return the names that `reach` is called with in the code; `*` stands for what a name has from elsewhere."""
    return {
        name
        for path in Path(iscp.__file__).parent.rglob("*.py")
        if ".reach(" in (text := path.read_text())
        for name in _reached(ast.parse(text))
    }


def _reached(tree: ast.Module) -> Iterator[str]:
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "reach":
            yield _name(node.args[0], constants)


def _name(node: ast.expr, constants: Mapping[str, object]) -> str:
    match node:
        case ast.Constant(value=str(name)):
            return name
        case ast.Name(id=constant):
            return str(constants[constant])
        case ast.JoinedStr(values=parts):
            return "".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)
    raise AssertionError(f"a failpoint whose name is not known: {ast.unparse(node)}")
