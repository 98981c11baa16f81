"""A cluster that builds, under random faults, by seed: `python -m tests.simulation.builds.play --seed 4711 --trace`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from random import Random

from iscp.cluster.builds.table_turns import GATHER_S
from iscp.model.build.build_state import BuildLimits, MergeRange, Prioritize, SplitRange
from iscp.model.build.build_task import BuildPlan
from iscp.model.rows.key_ranges import parent
from iscp.model.values.errors import IscpError
from tests.simulation.builds.world import REAL, BuildWorld, Conduct, Parts, Trace
from tests.simulation.violation import ViolationError, expect

TABLES = ("flights", "planes", "orders")
NODES = ("n1", "n2", "n3", "n4")
TROUBLE_S = 60.0
PEACE_S = 600.0
LATER_S = 60.0
EMPTIED = 0.1
"""So often etcd is emptied in the middle of the trouble, and so often once it is over, while one job is built."""
CALM_S = 30.0
REPAIRS = 0.2
"""So many commits are repairs."""


def plan(job_id: str, table_id: str, version: int = 7, depth: int = 3) -> BuildPlan:
    return BuildPlan(job_id, "default", table_id, job_id, f"/lake/{table_id}", version, "{}", 1 << 30, depth)


@dataclass
class Play:
    """What happens to a world until a time, drawn from a seed. What is drawn `aside` changes nothing else."""

    world: BuildWorld
    random: Random
    aside: Random
    jobs: int = 0

    def begin(self) -> None:
        draw = self.random.random
        self.world.conduct = Conduct(
            etcd_s=draw() * 0.2,
            call_s=draw() * 0.5,
            watch_s=draw() * self.random.choice((0.1, 3.0)),
            range_s=draw() * 6.0,
            write_lost=self.random.choice((0.0, 0.05, 0.3)),
            write_refused=self.random.choice((0.0, 0.1)),
            call_lost=self.random.choice((0.0, 0.1, 0.4)),
            batch_fails=self.random.choice((0.0, 0.1, 0.3)),
        )
        self.world.start(*NODES[: self.random.randint(1, 3)])
        self.world.elect("n1")
        for _ in range(self.random.randint(1, 4)):
            self.add_job()
        self.world.agenda.after(0.5, self.disturb)
        if self.aside.random() < EMPTIED:
            self.world.agenda.after(self.aside.random() * TROUBLE_S, self.world.empty_etcd)
        if self.aside.random() < EMPTIED:
            self.world.agenda.after(TROUBLE_S + CALM_S, self.lose_etcd_in_peace)

    def lose_etcd_in_peace(self) -> None:
        """While the owner waits for nodes, and has nothing to write."""
        self.add_job(depth=3)
        self.world.agenda.after(self.aside.uniform(GATHER_S, 3 * GATHER_S), self.world.empty_etcd)

    def disturb(self) -> None:
        if self.world.agenda.now_s < TROUBLE_S:
            acts = (
                *(self.add_job, self.drop_job, self.renew_job, self.restart, self.join, self.leave, self.drain),
                *(self.commit, self.commit, self.commit, self.commit, self.vacuum, self.lose),
                *(self.elect, self.split, self.split, self.split, self.merge, self.merge, self.merge, self.prioritize),
            )
            self.random.choice(acts)()
            self.world.agenda.after(self.random.random() * self.random.choice((0.2, 2.0, 6.0)), self.disturb)

    def settle(self) -> None:
        """All faults end; some owner and some node are there."""
        world = self.world
        world.conduct = Conduct(etcd_s=0.01, call_s=0.01, watch_s=0.1)
        if not world.members:
            world.start("n1")
        world.drain()
        world.elect(next(iter(world.members)))

    # --- what may happen -----------------------------------------------------------------------------------------

    def add_job(self, depth: int | None = None) -> None:
        self.jobs += 1
        version, drawn = self.random.choice((7, 7, 8)), self.random.choice((0, 1, 2, 3, 3))
        depth = drawn if depth is None else depth
        self.world.want(plan(f"j{self.jobs}", self.random.choice(TABLES), version, depth))

    def drop_job(self) -> None:
        if self.world.jobs:
            self.world.drop(self.random.choice(list(self.world.jobs)))

    def renew_job(self) -> None:
        """Its source's version is gone: the job wants another one."""
        waiting = [each for each in self.world.jobs.values() if each.job_id not in self.world.published]
        if waiting:
            old = self.random.choice(waiting)
            self.world.want(plan(old.job_id, old.table_id, old.version + 1, self.random.choice((old.depth, 2))))

    def restart(self) -> None:
        """A node's process, often the owner's, is killed and comes back at once; another may lead then."""
        if self.world.members:
            node_id = self.random.choice(list(self.world.members))
            self.world.kill(node_id)
            self.world.start(node_id)
            if self.world.owner is None:
                self.elect()

    def join(self) -> None:
        absent = [each for each in NODES if each not in self.world.members]
        if absent:
            self.world.start(self.random.choice(absent))

    def leave(self) -> None:
        if len(self.world.members) > 1:
            self.world.kill(self.random.choice(list(self.world.members)))
            if self.world.owner is None:
                self.elect()

    def drain(self) -> None:
        members = list(self.world.members)
        self.world.drain(*self.random.sample(members, self.random.randint(0, len(members))))

    def elect(self) -> None:
        if self.world.members:
            self.world.elect(self.random.choice(list(self.world.members)), self.random.choice((0.0, 0.5, 5.0)))

    def split(self) -> None:
        self._request(SplitRange)

    def merge(self) -> None:
        self._request(MergeRange)

    def commit(self) -> None:
        for _ in range(self.random.choice((1, 1, 3))):
            repair = self.aside.random() < REPAIRS
            self.world.landing.commit(self.random.choice(TABLES), repair)

    def vacuum(self) -> None:
        self.world.landing.vacuum(self.random.choice(TABLES))

    def lose(self) -> None:
        """A source, for good: its jobs end without it."""
        if self.random.random() < 0.1:
            self.world.landing.away.add(self.random.choice(TABLES))

    def prioritize(self) -> None:
        if self.world.owner is not None:
            event = Prioritize(self.random.choice(TABLES), self.random.randint(0, 2))
            self.world.to_owner(self.world.owner, event)

    def _request(self, kind: type[SplitRange | MergeRange]) -> None:
        owner = self.world.owner
        tasks = list(self.world.store.state.live.values())
        if owner is None or not tasks:
            return
        task = self.random.choice(tasks)
        try:
            range_id = task.range_id if kind is SplitRange else parent(task.range_id)
            self.world.to_owner(owner, kind(task.table_id, range_id))
        except IscpError:
            pass  # it is refused, and nothing is changed


def play(seed: int, parts: Parts = REAL, trace: Trace | None = None) -> BuildWorld:
    """Raises ViolationError where a promise is broken."""
    random = Random(seed)
    limits = BuildLimits(random.choice((1, 1, 2)), random.choice((5, 12, 100)))
    world = BuildWorld(random, parts, trace, limits)
    each = Play(world, random, Random(f"{seed} aside"))
    each.begin()
    world.agenda.run_until(TROUBLE_S)
    each.settle()
    world.agenda.run_until(TROUBLE_S + PEACE_S)
    unbuilt = world.jobs.keys() - world.published
    expect(not unbuilt, "{} are not built after {} s without faults", sorted(unbuilt), PEACE_S)
    world.agenda.run_until(TROUBLE_S + PEACE_S + LATER_S)
    state = world.store.state
    left = state.plans, state.jobs, state.tables, state.built, state.staging, state.retained
    expect(not any(left), "etcd has something left of builds: {}", left)
    expect(not any(world.landing.kept.values()), "something is kept that nobody needs: {}", world.landing.kept)
    return world


def violation(seed: int, parts: Parts = REAL) -> str:
    """What the seed violates; empty: nothing."""
    try:
        play(seed, parts)
    except ViolationError as error:
        return str(error)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.builds.play", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()

    def write(now_s: float, name: str, event: object, effects: list[object]) -> None:
        lines = [f"{now_s:9.3f} {name:9} {event}", *(f"{'':20}-> {effect}" for effect in effects)]
        sys.stdout.write("\n".join([*lines, ""]))

    if arguments.seed is not None:
        play(arguments.seed, trace=write if arguments.trace else None)
        return 0
    found = [
        (seed, what) for seed in range(arguments.first, arguments.first + arguments.seeds) if (what := violation(seed))
    ]
    sys.stdout.writelines(f"seed {seed}: {what}\n" for seed, what in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
