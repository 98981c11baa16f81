"""What mutual TLS costs: `python -m benchmarks.security [--json]`.

Clusters in turn without and with mutual TLS to users, between nodes and to etcd: nodes in processes of their own with
real etcd and gRPC, and an engine that does nothing. What is measured of each, the median of several counting:

- `calls_per_s`: threads of this process read jobs' statuses at a node that is not the owner, on connections that are
  open; it forwards them to the owner. So each call goes through two connections.
- `dispatches_per_s`: `shards_per_s` of `benchmarks.dispatch`, with fewer nodes.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

from benchmarks.bare_cluster import BareCluster
from benchmarks.dispatch import measure_cluster
from iscp.client.admin_client import Client

AIM_RATIO = 0.8
NODES = 3
CALLERS = 8
CALL_S = 4.0
ROUNDS = 3
SHARDS = 10_000
TTL_S, MARGIN_S = 30.0, 2.0


@dataclass(frozen=True, slots=True)
class Speeds:
    calls_per_s: float
    dispatches_per_s: float


def measure(shards: int, tls: bool) -> Speeds:
    with tempfile.TemporaryDirectory(prefix="iscp-security-") as directory:
        cluster = BareCluster(Path(directory), NODES, shards, TTL_S, MARGIN_S, tls=tls)
        try:
            dispatched = measure_cluster(cluster).shards_per_s
            return Speeds(calls_per_s(cluster), dispatched)
        finally:
            cluster.stop()


def calls_per_s(cluster: BareCluster, seconds: float = CALL_S) -> float:
    """Calls that were answered within `seconds`; one that fails ends the measurement."""
    owner = cluster.owner()
    entry = next(node for node in cluster.members if node is not owner)
    tls = cluster.files("client") if cluster.tls else None
    counts, failures, begin = [0] * CALLERS, list[Exception](), threading.Barrier(CALLERS + 1)
    until_s = [float("inf")]

    def use(number: int) -> None:
        with Client(entry.config.address, tls=tls) as client:
            client.cluster()  # connects
            begin.wait()
            try:
                while time.monotonic() < until_s[0]:
                    client.status(f"/lake/{number}", "copy")
                    counts[number] += 1
            except Exception as error:  # noqa: BLE001  (raised below, by the thread that measures)
                failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    until_s[0] = time.monotonic() + seconds + 1.0
    begin.wait()
    began_s = time.monotonic()
    until_s[0] = began_s + seconds
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.monotonic() - began_s)


def ratio(name: str, without: list[Speeds], with_tls: list[Speeds]) -> dict[str, object]:
    plain, secured = (median(getattr(each, name) for each in speeds) for speeds in (without, with_tls))
    share = round(secured / plain, 2)
    aim = {"aim": f"{name} with mutual TLS >= {AIM_RATIO:g} of without", "measured": share, "met": share >= AIM_RATIO}
    return {name: round(plain), f"{name}_tls": round(secured), "aim": aim}


@click.command()
@click.option("--shards", type=click.IntRange(min=CALLERS), default=SHARDS, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=ROUNDS, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(shards: int, rounds: int, as_json: bool) -> None:
    """Measure calls and dispatches with mutual TLS against without."""
    speeds: dict[bool, list[Speeds]] = {False: [], True: []}
    for number in range(rounds):
        for tls in (False, True) if number % 2 == 0 else (True, False):  # neither is always the first
            speeds[tls].append(measure(shards, tls))
            click.echo(f"{'with' if tls else 'without'} TLS: {speeds[tls][-1]}", err=True)
    found = [ratio(name, speeds[False], speeds[True]) for name in ("calls_per_s", "dispatches_per_s")]
    aims = [each.pop("aim") for each in found]
    result: dict[str, object] = {"benchmark": "security", "cpus": os.cpu_count(), "nodes": NODES, "shards": shards}
    for each in found:
        result |= each
    result |= {
        "rounds": {("tls" if tls else "plain"): [asdict(each) for each in speeds[tls]] for tls in speeds},
        "aims": aims,
    }
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
