"""How long tables stand still when nodes go: `python -m benchmarks.failover [--runs N] [--json]`.

Three processes with real etcd and gRPC, and an engine that does nothing. In each run a node, the owner, or both are
killed, or a node or the owner gets SIGTERM. What is measured of each shard is from the moment of the fault (or, of
an orderly stop, from when its node gave it up) until another node took it in. Then the cluster is made whole, and is
waited for until every shard is back home.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.bare_cluster import BareCluster, BareNode, until
from benchmarks.progress import report_progress

TTL_S, MARGIN_S = 5.0, 0.5
CRASH_AIM_S = TTL_S + 1.5
SIGTERM_AIM_S = 1.0
NODES = 3
SHARDS = 120
RUNS = 20
SETTLE_S = 0.7
"""After all is home again, for what is still confirmed."""

CRASHES = ("node", "owner", "node and owner")
STOPS = ("node stops", "owner stops")


@dataclass(frozen=True, slots=True)
class Run:
    """`over_s`: until the last of the victims' shards ran elsewhere; `still_s`: the longest that any stood still."""

    over_s: float
    still_s: float


def victims_of(cluster: BareCluster, fault: str) -> list[BareNode]:
    owner = cluster.owner()
    others = [node for node in cluster.members if node is not owner]
    if fault in ("owner", "owner stops"):
        return [owner]
    # Whoever has most of the rest, so that there is something to take over.
    busiest = max(others, key=lambda node: node.count("shards"))
    return [busiest, owner] if fault == "node and owner" else [busiest]


def measure(cluster: BareCluster, fault: str) -> Run:
    victims = victims_of(cluster, fault)
    rest = [node for node in cluster.members if node not in victims]
    held = [shard for node in victims for shard in running(node)]
    for node in cluster.members:
        node.noted()
    fault_ns = time.monotonic_ns()
    for node in victims:
        assert node.child is not None
        node.child.terminate() if fault in STOPS else node.child.kill()
    until(f"all shards run after {fault}", lambda: sum(node.count("shards") for node in rest) == cluster.shards)
    for node in victims:
        assert node.child is not None
        node.child.wait(30.0)
    since_ns = {shard: at_ns for node in victims for at_ns, sign, shard in node.noted() if sign == "-"}
    taken_ns: dict[str, int] = {}
    for at_ns, sign, shard in sorted(note for node in rest for note in node.noted()):
        if sign == "+" and at_ns >= fault_ns:
            taken_ns.setdefault(shard, at_ns)
    still = [(taken_ns[shard] - since_ns.get(shard, fault_ns)) / 1e9 for shard in held]
    over_s = max((taken_ns[shard] - fault_ns) / 1e9 for shard in held)
    for node in victims:
        node.start()
    until("the cluster is whole again", cluster.settled)
    time.sleep(SETTLE_S)
    return Run(over_s, max(still))


def running(node: BareNode) -> list[str]:
    """The shards that the node has, by its whole trace."""
    held: dict[str, None] = {}
    for line in node.trace.read_text().splitlines():
        _, sign, shard = line.split()
        held[shard] = None
        if sign == "-":
            del held[shard]
    if node.child is not None:
        assert len(held) == node.count("shards"), (
            f"{node.name} has {node.count('shards')} shards, and noted {len(held)}"
        )
    return list(held)


def table(runs: dict[str, list[Run]]) -> list[dict[str, float | str]]:
    return [
        {
            "fault": fault,
            "runs": len(some),
            "p50_s": round(statistics.median(run.over_s for run in some), 2),
            "max_s": round(max(run.over_s for run in some), 2),
            "longest_still_s": round(max(run.still_s for run in some), 2),
        }
        for fault, some in runs.items()
    ]


@click.command()
@click.option("--runs", type=click.IntRange(min=1), default=RUNS, show_default=True, help="Of each fault.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(runs: int, as_json: bool) -> None:
    """Measure failovers."""
    measured: dict[str, list[Run]] = {fault: [] for fault in (*CRASHES, *STOPS)}
    with tempfile.TemporaryDirectory(prefix="iscp-failover-") as root:
        cluster = BareCluster(Path(root), NODES, SHARDS, TTL_S, MARGIN_S)
        try:
            cluster.start()
            for number in range(runs):
                for fault, some in measured.items():
                    some.append(measure(cluster, fault))
                    report_progress(fault, run=number + 1, **asdict(some[-1]))
        finally:
            cluster.stop()
    crashes = [run.over_s for fault in CRASHES for run in measured[fault]]
    stops = [run.over_s for fault in STOPS for run in measured[fault]]
    crash_max_s, sigterm_max_s = round(max(crashes), 2), round(max(stops), 2)
    aims = [
        {"aim": f"crash_max_s <= {CRASH_AIM_S:g}", "measured": crash_max_s, "met": crash_max_s <= CRASH_AIM_S},
        {
            "aim": f"sigterm_max_s <= {SIGTERM_AIM_S:g}",
            "measured": sigterm_max_s,
            "met": sigterm_max_s <= SIGTERM_AIM_S,
        },
    ]
    result = {
        "benchmark": "failover",
        "cpus": os.cpu_count(),
        "nodes": NODES,
        "shards": SHARDS,
        "ttl_s": TTL_S,
        "margin_s": MARGIN_S,
        "crash_p50_s": round(statistics.median(crashes), 2),
        "crash_max_s": crash_max_s,
        "sigterm_max_s": sigterm_max_s,
        "faults": table(measured),
        "aims": aims,
    }
    if as_json:
        click.echo(json.dumps(result))
        return
    click.echo(f"{'fault':16} {'runs':>5} {'p50 s':>7} {'max s':>7} {'longest still s':>16}")
    for row in table(measured):
        click.echo(
            f"{row['fault']:16} {row['runs']:>5} {row['p50_s']:>7} {row['max_s']:>7} {row['longest_still_s']:>16}"
        )
    for aim in aims:
        click.echo(f"{aim['aim']}: {aim['measured']} ({'met' if aim['met'] else 'missed'})")


if __name__ == "__main__":
    main()
