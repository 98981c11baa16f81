"""Whole dialogues of builds between owner, nodes and etcd, kept as text.

Rewritten by `ISCP_REGENERATE=1 pytest tests/golden`; look at the difference before committing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from iscp.model.build.build_state import (
    BuilderEvent,
    BuildPlace,
    BuildState,
    MergeRange,
    NodesPlaced,
    SplitRange,
)
from iscp.model.build.build_task import BuildPlan, BuildTask, RangeBatch, RetainedSpan, StagingBatch, StagingTask
from iscp.model.values.errors import IscpError
from tests.golden.test_dialogues import show
from tests.simulation.builds.play import plan
from tests.simulation.builds.world import BuildWorld, Conduct

HERE = Path(__file__).parent / "dialogues" / "builds"


def show_build(value: object) -> str:
    """One line for a value: what matters to builds."""
    match value:
        case BuildTask():
            aborted = " aborted" if value.aborted else ""
            return f"{value.task_id}({value.job_id} {value.range_id} at {value.node_id}{aborted})"
        case StagingTask() | StagingBatch() | RetainedSpan():
            return show_kept(value)
        case BuildPlan():
            return f"{value.job_id}@{value.version}"
        case BuildPlace():
            return f"{value.table_id}/{value.range_id} at {value.node_id}"
        case RangeBatch():
            return f"{value.range_id} for {' '.join(map(show_build, value.plans))}"
        case BuildState():
            return f"{len(value.plans)} plans, {len(value.live)} live and {len(value.aborted)} aborted tasks"
        case NodesPlaced():
            return f"NodesPlaced {' '.join(sorted(value.staying))}"
        case IscpError():
            return value.sentence
        case str():
            return value
        case Sequence():
            return f"[{', '.join(map(show_build, value))}]"
    if hasattr(value, "__dataclass_fields__"):
        parts = (show_build(getattr(value, name)) for name in value.__dataclass_fields__)
        return " ".join([type(value).__name__, *parts])
    return show(value)


def show_kept(value: StagingTask | StagingBatch | RetainedSpan) -> str:
    match value:
        case StagingTask():
            what = "removes" if value.removes else f"keeps {value.after + 1}..{value.until}"
            return f"{value.task_id}({value.table_id} {what} at {value.node_id})"
        case StagingBatch():
            return " ".join([show_kept(value.task), "for", *map(show_build, value.plans)])
        case RetainedSpan():
            return f"{value.table_id}({value.since}, {value.until}]"


class CalmWorld(BuildWorld):
    """Nothing is left to chance. `refusing`: etcd refuses the second step of every replacement."""

    refusing = False

    def draw(self, up_to_s: float) -> float:
        return up_to_s

    def happens(self, likelihood: float) -> bool:
        return self.refusing and likelihood == 1.0 and bool(self.store.state.aborted)


class Scene:
    """Two nodes, of which n1 leads; nothing takes time but the work on a range: a second."""

    def __init__(self) -> None:
        self.transcript: list[str] = []
        self.world = CalmWorld(Random(0), trace=self._note)
        self.world.conduct = Conduct(range_s=1.0, write_refused=1.0)

    def begin(self, *jobs: BuildPlan, nodes: Sequence[str] = ("n1", "n2")) -> None:
        self.world.start(*nodes)
        self.world.elect("n1")
        for job in jobs:
            self.world.want(job)

    def run(self, seconds: float) -> None:
        self.world.agenda.run_until(self.world.agenda.now_s + seconds)

    def say(self, event: BuilderEvent) -> None:
        assert self.world.owner is not None
        self.world.to_owner(self.world.owner, event)

    def _note(self, now_s: float, name: str, event: object, effects: list[object]) -> None:
        if effects or type(event).__name__ not in ("BuildTick", "BuildWanted", "TableSeen"):
            lines = [f"{now_s:6.1f} {name:9} {show_build(event)}"]
            self.transcript += [*lines, *(f"{'':18}-> {show_build(effect)}" for effect in effects)]


def migration(scene: Scene) -> None:
    """A node drains: its tasks are aborted while they are in work, and others take their place at the other node."""
    scene.begin(plan("j1", "flights", depth=1))
    scene.run(2.5)
    scene.world.drain("n1")
    scene.run(4)


def split(scene: Scene) -> None:
    """A range that waits is split for both jobs of the table; what was read of it by halves is read for both."""
    scene.begin(plan("j1", "flights", depth=2), plan("j2", "flights", depth=2), nodes=("n1",))
    scene.run(2.5)
    scene.say(SplitRange("flights", 7))
    scene.run(4)


def merge(scene: Scene) -> None:
    """Two halves that wait become one task."""
    scene.begin(plan("j1", "flights", depth=2), nodes=("n1",))
    scene.run(2.5)
    scene.say(MergeRange("flights", 3))
    scene.run(4)


def failed_split(scene: Scene) -> None:
    """The second step of a split fails: what was aborted is there again as a copy, on its old place."""
    scene.begin(plan("j1", "flights", depth=1), nodes=("n1",))
    scene.run(2.5)
    scene.world.refusing = True
    scene.say(SplitRange("flights", 3))
    scene.run(0.5)
    scene.world.refusing = False
    scene.run(4)


def dropped_in_the_middle(scene: Scene) -> None:
    """One of two jobs is dropped: its tasks are deleted, and the batch in work goes on for the other."""
    scene.begin(plan("j1", "flights", depth=1), plan("j2", "flights", depth=1), nodes=("n1",))
    scene.run(2.5)
    scene.world.drop("j1")
    scene.run(4)


def owner_change_before_the_removal(scene: Scene) -> None:
    """A node has answered, and the owner ends before it has removed the task: the next one is answered at once."""
    scene.begin(plan("j1", "flights", depth=0), nodes=("n1", "n2"))
    scene.run(3.1)
    scene.world.elect("n2")
    scene.run(3)


def owner_and_node_restarted(scene: Scene) -> None:
    """Owner and node end together, after the work and before its removal: it is done again, with an equal result."""
    scene.begin(plan("j1", "flights", depth=0), nodes=("n1",))
    scene.run(3.1)
    scene.world.kill("n1")
    scene.world.start("n1")
    scene.world.elect("n1")
    scene.run(3)


def commit_in_the_middle(scene: Scene) -> None:
    """A commit lands while a table is built: it is kept beside the ranges, and deleted when its job has applied it."""
    scene.begin(plan("j1", "flights", depth=2), nodes=("n1",))
    scene.run(2.5)
    scene.world.landing.commit("flights")
    scene.run(7)


def commit_gone_in_the_middle(scene: Scene) -> None:
    """A commit is gone before it is kept: the build begins again behind it, and nothing is kept any more."""
    scene.begin(plan("j1", "flights", depth=3), nodes=("n1",))
    scene.run(2.5)
    scene.world.landing.commit("flights")
    scene.world.landing.vacuum("flights")
    scene.run(12)


def owner_change_before_kept_commits_are_counted(scene: Scene) -> None:
    """A node has kept a commit, and the owner ends before that is written: the next one is answered at once."""
    scene.begin(plan("j1", "flights", depth=2), nodes=("n1",))
    scene.run(2.5)
    scene.world.landing.commit("flights")
    scene.run(0.7)
    scene.world.conduct.etcd_s = 0.5
    scene.run(1.0)
    scene.world.conduct.etcd_s = 0.0
    scene.world.elect("n1")
    scene.run(2)


def dropped_while_commits_are_kept(scene: Scene) -> None:
    """The only job is dropped: the task that keeps for it is deleted, and then what is kept."""
    scene.begin(plan("j1", "flights", depth=2), nodes=("n1",))
    scene.run(2.5)
    scene.world.landing.commit("flights")
    scene.run(0.7)
    scene.world.drop("j1")
    scene.run(4)


def repair_of_a_table_that_is_built(scene: Scene) -> None:
    """A repair lands on a table whose jobs all tail: it is kept until they have applied it, and so is a second one."""
    scene.begin(plan("j1", "flights", depth=0), nodes=("n1",))
    scene.run(5)
    scene.world.landing.commit("flights")
    scene.world.landing.commit("flights", repair=True)
    scene.run(1.5)
    scene.world.landing.commit("flights", repair=True)
    scene.run(12)


SCENARIOS: tuple[Callable[[Scene], None], ...] = (
    migration,
    split,
    merge,
    failed_split,
    dropped_in_the_middle,
    owner_change_before_the_removal,
    owner_and_node_restarted,
    commit_in_the_middle,
    commit_gone_in_the_middle,
    owner_change_before_kept_commits_are_counted,
    dropped_while_commits_are_kept,
    repair_of_a_table_that_is_built,
)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_build_dialogue(scenario: Callable[[Scene], None]) -> None:
    scene = Scene()
    scenario(scene)
    text = "\n".join([f"# {scenario.__doc__}", *scene.transcript, ""])
    path = HERE / f"{scenario.__name__}.txt"
    if os.environ.get("ISCP_REGENERATE"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
