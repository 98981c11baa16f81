"""What mutual TLS costs: `python -m benchmarks.security [--json]`.

Two pairs of clusters, one without and one with mutual TLS to users, between nodes and to etcd: nodes in processes of their
own with real etcd and gRPC, and an engine that does nothing. What is measured, of both in turn and several times, of which
the median is taken:

- `calls_per_s`: threads of this process call `Status` of jobs at the node that does not own the cluster, on connections that
  are open; it forwards them to the owner. So each call goes through two connections.
- `dispatches_per_s`: the owner's node is killed, and the next owner hands out all shards: shards by the time from the first
  that a node takes in to the moment when the owner knows that all of them run.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import click

from benchmarks.bare_cluster import BareCluster, until
from iscp.client.admin_client import Client

AIM_RATIO = 0.8
NODES = 3
CALLERS = 8
CALL_S = 4.0
ROUNDS = 5
TTL_S, MARGIN_S = 10.0, 2.0


@contextmanager
def running(shards: int, tls: bool) -> Iterator[BareCluster]:
    with tempfile.TemporaryDirectory(prefix="iscp-security-") as directory:
        cluster = BareCluster(Path(directory), NODES, shards, TTL_S, MARGIN_S, tls=tls)
        try:
            cluster.start()
            yield cluster
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


def dispatches_per_s(cluster: BareCluster) -> float:
    """Of the shards of a node that is killed, and comes back: all shards are handed out by the next owner."""
    for node in cluster.members:
        node.noted()
    victim = cluster.owner()
    victim.kill()
    left = [node for node in cluster.members if node is not victim]
    until("the others have all", lambda: sum(node.count("shards") for node in left) == cluster.shards)
    taken = sorted(at_ns for node in left for at_ns, sign, _ in node.noted() if sign == "+")
    victim.start()
    until("all run where they belong", cluster.settled)
    return (len(taken) - 1) / ((taken[-1] - taken[0]) / 1e9)
