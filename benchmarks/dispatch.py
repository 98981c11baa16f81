"""How fast an owner hands out shards, and how soon a new one goes on: `python -m benchmarks.dispatch [--json]`.

Ten processes with real etcd and gRPC, and an engine that does nothing, on a job log that has a job on each table. This
process leads at first and does nothing, until all nodes are there; then it resigns. What is measured, by the monotonic
clock that all processes share:

- `shards_per_s`: from the first shard that a node took in to the moment when the owner knows that all of them run.
- `owner_switch_s`: all run, and the owner's key is deleted. From then until the next owner has loaded the log, has
  everyone's Sync and may place again; `switch_all_run_s`: until it knows that all of them run.
- `bytes_per_shard`: what the owner's machine keeps of a shard beside its rows, counted by tracemalloc in this process.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

import click

from benchmarks.bare_cluster import BareCluster, until
from benchmarks.progress import report_progress
from iscp.cluster.owner_machine import OwnerMachine
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys
from iscp.etcd.owner_keys import EtcdElection
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import CoordinationTimes, Elected, FromNode, OwnerEffect, SendTo, Tick
from iscp.model.protocol.messages import DispatchTable, DispatchTableResponse, NodeShardState, Sync
from iscp.model.values.ids import JobKey, NodeRecord, ShardId
from iscp.system.threads import SystemClock
from tests.fakes.rings import step_with_rings

AIM_SHARDS_PER_S = 10_000
AIM_SWITCH_S = 3.0
AIM_BYTES = 1024
NODES = 10
SIZES = (1_000, 10_000, 100_000)
TTL_S, MARGIN_S = 30.0, 2.0
"""Long enough that none of ten processes on two cores loses its lease while all of them are busy."""
TIMEOUT_S = 300.0
SELDOM_S = 0.5
"""Between two looks while it is measured: the nodes note the times themselves, and need the two cores."""


@dataclass(frozen=True, slots=True)
class Measured:
    shards: int
    shards_per_s: int
    owner_switch_s: float
    switch_all_run_s: float


@contextmanager
def leading_idly(cluster: BareCluster) -> Iterator[EtcdClient]:
    """Nobody else leads meanwhile."""
    clock, keys = SystemClock(), Keys(cluster.members[0].config.etcd_prefix)
    with EtcdClient(cluster.etcd_settings, clock) as etcd:
        election, elected = EtcdElection(etcd, keys, clock, lease_ttl_s=TTL_S, margin_s=MARGIN_S), threading.Event()
        election.campaign("bench", lambda leader: elected.set(), lambda: None)
        assert elected.wait(30.0)
        try:
            yield etcd
        finally:
            election.resign()


def depose(cluster: BareCluster) -> float:
    """Delete the owner's key, as an operator could; when."""
    keys = Keys(cluster.members[0].config.etcd_prefix)
    with EtcdClient(cluster.etcd_settings, SystemClock()) as etcd:
        oldest = min(etcd.list_prefix(keys.candidates).items, key=lambda kv: kv.create_revision)
        at_s = time.monotonic()
        etcd.delete(oldest.key)
    return at_s


def all_run(cluster: BareCluster, after_rev: int) -> dict[str, int]:
    """What the owner of a term after that one noted, once it knows that all shards run; empty before."""
    told = [node.told() for node in cluster.members]
    counts = max((dict(each.counters) for each in told if each), key=lambda each: each.get("owner_rev", 0))
    return counts if counts.get("owner_rev", 0) > after_rev and counts.get("all_run_us", 0) else {}


def measure(shards: int, nodes: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="iscp-dispatch-") as root:
        cluster = BareCluster(Path(root), nodes, shards, TTL_S, MARGIN_S)
        try:
            return measure_cluster(cluster)
        finally:
            cluster.stop()


def measure_cluster(cluster: BareCluster) -> Measured:
    """Of one none of whose nodes has been started; they run after it."""
    keys = Keys(cluster.members[0].config.etcd_prefix)
    with leading_idly(cluster) as etcd:
        for node in cluster.members:
            node.start()
        until("all nodes are there", lambda: len(etcd.list_prefix(keys.nodes).items) == cluster.nodes)
        until("all nodes run for owner", lambda: len(etcd.list_prefix(keys.candidates).items) == cluster.nodes + 1)
    until("all shards run", lambda: all_run(cluster, 0), TIMEOUT_S, SELDOM_S)
    owner = all_run(cluster, 0)
    first_us = min(node.count("first_start_us") for node in cluster.members)
    took_s = (owner["all_run_us"] - first_us) / 1e6
    deposed_s = depose(cluster)
    until("all shards run under the next owner", lambda: all_run(cluster, owner["owner_rev"]), TIMEOUT_S, SELDOM_S)
    following = all_run(cluster, owner["owner_rev"])
    return Measured(
        shards=cluster.shards,
        shards_per_s=round(cluster.shards / took_s),
        owner_switch_s=round(following["placing_us"] / 1e6 - deposed_s, 2),
        switch_all_run_s=round(following["all_run_us"] / 1e6 - deposed_s, 2),
    )


def bytes_per_shard(shards: int) -> float:
    """Of an owner's machine whose one node has confirmed everything."""
    rows = {}
    for n in range(shards):
        key = JobKey("default", f"table-{n}", "copy")
        rows[ShardId(key.table_id)] = (JobRow(key, f"{n:032x}", "{}", f"/lake/{n}", f"/lake/{n}"),)
    record = NodeRecord("n1", 1, "n1:1")
    tracemalloc.start()
    owner = OwnerMachine("n1", "1", CoordinationTimes(alive_s=inf))
    owner.step(Elected(1, 101, (record,), rows), 0.0)
    sent: list[OwnerEffect] = owner.step(FromNode("n1", Sync(1, 1, "1", 1, 0, 1, 0, ())), 0.0)
    sent += step_with_rings(owner, Tick(), 1.0)
    while sent:
        effect = sent.pop()
        if isinstance(effect, SendTo) and isinstance(effect.message, DispatchTable):
            dispatch = effect.message
            answer = DispatchTableResponse(1, 1, dispatch.table_epoch, dispatch.shard, NodeShardState.RUNNING)
            sent += step_with_rings(owner, FromNode("n1", answer), 1.0)
    while (due_s := owner.next_due_s()) is not None:
        step_with_rings(owner, Tick(), due_s)
    assert owner.settled
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return used / shards


@click.command()
@click.option("--shards", type=click.IntRange(min=1), multiple=True, default=SIZES, show_default=True)
@click.option("--nodes", type=click.IntRange(min=1), default=NODES, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(shards: tuple[int, ...], nodes: int, as_json: bool) -> None:
    """Measure dispatching and changes of the owner."""
    growth = []
    for size in sorted(shards):
        growth.append(measure(size, nodes))
        report_progress(f"{size} shards", **asdict(growth[-1]))
    largest = growth[-1]
    kept = round(bytes_per_shard(largest.shards))
    report_progress(f"the machine of {largest.shards} shards", bytes_per_shard=kept)
    rate, switch_s = largest.shards_per_s, largest.owner_switch_s
    result = {
        "benchmark": "dispatch",
        "cpus": os.cpu_count(),
        "nodes": nodes,
        **asdict(largest),
        "bytes_per_shard": kept,
        "growth": [asdict(each) for each in growth],
        "aims": [
            {"aim": f"shards_per_s >= {AIM_SHARDS_PER_S}", "measured": rate, "met": rate >= AIM_SHARDS_PER_S},
            {"aim": f"owner_switch_s <= {AIM_SWITCH_S:g}", "measured": switch_s, "met": switch_s <= AIM_SWITCH_S},
            {"aim": f"bytes_per_shard <= {AIM_BYTES}", "measured": kept, "met": kept <= AIM_BYTES},
        ],
    }
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
