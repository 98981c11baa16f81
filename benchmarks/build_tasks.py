"""What the tasks of builds cost: `python -m benchmarks.build_tasks [--json]`.

The owner's builder with a real etcd, and `--nodes` nodes that do nothing but answer after a while. Five jobs on one
table, of `--ranges` ranges each: 10,240 tasks by default.

- `create_s`: from the first transaction until all tasks and plans are in etcd.
- `etcd_txn_per_s`: transactions while the nodes work, two ranges each at a time, `--range-s` for each range; all of the
  work is played in real time, from the first call until the last task is removed. `etcd_txn_per_s_most`: in the busiest
  second.
- `bytes_per_task`: what the builder keeps of a task, counted by tracemalloc once they are loaded from etcd.
"""

from __future__ import annotations

import heapq
import json
import os
import queue
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from benchmarks.progress import report_progress
from iscp.cluster.builds.builder import Builder
from iscp.cluster.builds.table_turns import GATHER_S
from iscp.cluster.membership.assignments import ring_of
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.etcd.owner_keys import EtcdElection
from iscp.etcd.server import EtcdServer
from iscp.etcd.watched_keys import EtcdBuilds
from iscp.model.build.build_state import (
    BuilderEvent,
    BuildLimits,
    BuildsLoaded,
    BuildState,
    BuildsWritten,
    BuildTick,
    CallNode,
    CheckBuilds,
    LoadBuilds,
    NodesPlaced,
    RangeAnswered,
    WriteBuilds,
)
from iscp.model.build.build_task import BuildPlan
from iscp.model.values.ids import Leader
from iscp.model.values.progress import TableSize
from iscp.model.values.ring import Placement
from iscp.system.threads import THREADS, SystemClock

JOBS, RANGES, NODES = 5, 2_048, 100
RANGE = TableSize(1_000_000, 256 << 20)
TABLE = "8a4f3c52-0f0e-4d0b-9d0f-0d6a1f0b7c11"
AIM_CREATE_S, AIM_TXN_PER_S, AIM_BYTES = 5.0, 50.0, 2048


def plans(ranges: int) -> list[BuildPlan]:
    depth = max(1, (ranges - 1).bit_length())
    return [
        BuildPlan(f"{number:012x}", "default", TABLE, f"job-{number}", "/lake/events", 7, "{}", 256 << 20, depth)
        for number in range(JOBS)
    ]


class Owner:
    """A builder whose writes go to etcd at once, and whose calls to nodes are answered after `range_s`."""

    def __init__(self, store: EtcdBuilds, leader: Leader, wanted: Sequence[BuildPlan], range_s: float) -> None:
        self._store = store
        self._leader = leader
        self._range_s = range_s
        self._began_s = time.monotonic()
        self._answers: list[tuple[float, int, tuple[str, ...]]] = []
        self.writes: Counter[int] = Counter()
        self.calls = 0
        self.builder = Builder(1, BuildLimits(), wanted, {plan.job_id for plan in wanted}, self.now_s())
        self.take(BuildTick())

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def take(self, event: BuilderEvent) -> None:
        events = [event]
        while events:
            for effect in self.builder.step(events.pop(0), self.now_s()):
                match effect:
                    case LoadBuilds(number):
                        events.append(BuildsLoaded(number, self._store.load()))
                    case WriteBuilds(number, changes):
                        self._store.write(self._leader, changes)
                        self.writes[int(self.now_s())] += 1
                        events.append(BuildsWritten(number))
                    case CheckBuilds(number):
                        assert self._store.is_current()
                        events.append(BuildsWritten(number))
                    case CallNode(number, _, _, task_ids):
                        self.calls += 1
                        heapq.heappush(self._answers, (self.now_s() + self._range_s, number, task_ids))
                    case _:
                        pass

    def turn(self) -> None:
        """Wait for what is due next, and take it."""
        due = [due_s for due_s in (self.builder.next_due_s(),) if due_s is not None]
        due += [at_s for at_s, _, _ in self._answers[:1]]
        time.sleep(max(0.0, min(due) - self.now_s()))
        if self._answers and self._answers[0][0] <= self.now_s():
            _, number, task_ids = heapq.heappop(self._answers)
            self.take(RangeAnswered(number, dict.fromkeys(task_ids, RANGE)))
        else:
            self.take(BuildTick())

    def place(self, count: int) -> None:
        nodes = frozenset(f"iscp-{number}" for number in range(count))
        self.take(NodesPlaced(Placement(nodes, ring=ring_of(nodes)), nodes))

    @property
    def state(self) -> BuildState:
        assert self.builder.state is not None
        return self.builder.state


@contextmanager
def term() -> Iterator[tuple[EtcdBuilds, Leader]]:
    clock, keys = SystemClock(), Keys("/bench")
    with tempfile.TemporaryDirectory() as scratch:
        etcd = EtcdServer.start(Path(scratch) / "etcd", clock=clock)
        try:
            with EtcdClient(EtcdSettings((etcd.endpoint,)), clock) as client:
                election = EtcdElection(client, keys, clock, lease_ttl_s=5.0, margin_s=1.0)
                terms: queue.SimpleQueue[Leader] = queue.SimpleQueue()
                election.campaign("iscp-0", terms.put, lambda: None)
                yield EtcdBuilds(client, election, keys, THREADS), terms.get(timeout=30)
                election.resign()
        finally:
            etcd.stop()


def create(owner: Owner, nodes: int) -> float:
    """Seconds until all is in etcd. Nobody works meanwhile, as nobody knows of nodes before."""
    time.sleep(GATHER_S)
    began_s = owner.now_s()
    owner.place(nodes)
    while len(owner.state.plans) < JOBS:
        owner.turn()
    return owner.now_s() - began_s


def bytes_per_task(store: EtcdBuilds, wanted: Sequence[BuildPlan], leader: Leader) -> int:
    """Of a builder that has just loaded them, as the next owner does."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    owner = Owner(store, leader, wanted, 1.0)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) // len(owner.state.live)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--range-s", default=2.0, show_default=True, help="How long a node works on a range.")
@click.option("--ranges", type=click.IntRange(min=2), default=RANGES, show_default=True, help="Of each of the jobs.")
@click.option("--nodes", type=click.IntRange(min=1), default=NODES, show_default=True)
def main(as_json: bool, range_s: float, ranges: int, nodes: int) -> None:
    """Measure builds' tasks."""
    with term() as (store, leader):
        wanted = plans(ranges)
        owner = Owner(store, leader, wanted, range_s)
        create_s = create(owner, nodes)
        tasks, size = len(owner.state.live), bytes_per_task(store, wanted, leader)
        report_progress("creation", tasks=tasks, create_s=round(create_s, 2), bytes_per_task=size)
        owner.writes.clear()
        began_s, cpu_s = owner.now_s(), time.process_time()
        while owner.state.plans:
            owner.turn()
        work_s, cpu_s = owner.now_s() - began_s, time.process_time() - cpu_s
    txn_per_s = round(owner.writes.total() / work_s, 1)
    result = {
        "benchmark": "build_tasks",
        "cpus": os.cpu_count(),
        "tasks": tasks,
        "nodes": nodes,
        "range_s": range_s,
        "create_s": round(create_s, 2),
        "etcd_txn_per_s": txn_per_s,
        "etcd_txn_per_s_most": max(owner.writes.values()),
        "work_s": round(work_s, 1),
        "owner_cpu_s": round(cpu_s, 2),
        "calls": owner.calls,
        "bytes_per_task": size,
        "aims": [
            {"aim": f"create_s <= {AIM_CREATE_S}", "measured": round(create_s, 2), "met": create_s <= AIM_CREATE_S},
            {"aim": f"etcd_txn_per_s <= {AIM_TXN_PER_S}", "measured": txn_per_s, "met": txn_per_s <= AIM_TXN_PER_S},
            {"aim": f"bytes_per_task <= {AIM_BYTES}", "measured": size, "met": size <= AIM_BYTES},
        ],
    }
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
