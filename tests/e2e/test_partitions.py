"""Nodes in network namespaces of their own, which are cut off from each other, or from etcd, in one direction."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from benchmarks.bare_cluster import BareCluster, BareNode, until
from iscp.model.access.security_config import SecurityConfig
from iscp.system.http_exchange import free_port

SHARDS = 30
TTL_S, MARGIN_S = 3.0, 0.5
NODES = 3
CUT_WAIT_S = 60.0
"""Beyond the silence that an owner bears, a lease, and the grace."""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


class Hosts:
    """A bridge on this machine, and namespaces that hang on it: `.1` of the net is this machine, `.10` the first."""

    def __init__(self, count: int) -> None:
        self.name = f"iscp{uuid4().hex[:6]}"
        self.net = f"10.77.{os.getpid() % 200 + 1}"
        self.count = count

    def address(self, number: int) -> str:
        return f"{self.net}.{10 + number}"

    def space(self, number: int) -> str:
        return f"{self.name}-{number}"

    def make(self) -> None:
        ip("link", "add", self.name, "type", "bridge")
        ip("addr", "add", f"{self.net}.1/24", "dev", self.name)
        ip("link", "set", self.name, "up")
        for number in range(self.count):
            space, end = self.space(number), f"{self.name}v{number}"
            ip("netns", "add", space)
            ip("link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", end, "master", self.name, "up")
            for words in (("addr", "add", f"{self.address(number)}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
                ip("-n", space, *words)
            ip("-n", space, "link", "set", "lo", "up")

    def cut(self, number: int, address: str) -> None:
        """Nothing from there reaches `address` any more; what comes from it still arrives."""
        ip("-n", self.space(number), "route", "add", "blackhole", f"{address}/32")

    def heal(self, number: int, address: str) -> None:
        ip("-n", self.space(number), "route", "del", "blackhole", f"{address}/32")

    def remove(self) -> None:
        for number in range(self.count):
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", self.space(number))
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", self.name)


INSECURE = SecurityConfig(insecure=True)  # these networks are of this machine


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root, and `ip` of iproute2, to make network namespaces")
    made = Hosts(NODES)
    try:
        made.make()
    except subprocess.CalledProcessError as error:
        made.remove()
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture
def cluster(hosts: Hosts, tmp_path: Path) -> Iterator[BareCluster]:
    """Each node in a namespace of its own, etcd on this machine."""
    made = BareCluster(tmp_path, NODES, SHARDS, TTL_S, MARGIN_S, etcd_host=f"{hosts.net}.1")
    made.members = [
        BareNode(
            made.config(f"n{number}", listen=f"{hosts.address(number)}:{free_port()}", security=INSECURE),
            made.root,
            {},
            prefix=("ip", "netns", "exec", hosts.space(number)),
        )
        for number in range(NODES)
    ]
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.full
def test_one_way_partitions_hold_up_nobody(cluster: BareCluster, hosts: Hosts) -> None:
    """Whoever the owner does not reach, or who does not reach the owner, loses its shards though etcd sees it."""
    owner = cluster.owner()
    numbers = {node.name: number for number, node in enumerate(cluster.members)}
    first, second = (node for node in cluster.members if node is not owner)
    for source, target, victim in ((owner, first, first), (second, owner, second)):
        hosts.cut(numbers[source.name], hosts.address(numbers[target.name]))
        until(f"{victim.name} has nothing", lambda victim=victim: cluster.others_have_all(victim), CUT_WAIT_S)  # type: ignore[misc]
        hosts.heal(numbers[source.name], hosts.address(numbers[target.name]))
        until("all runs where it belongs", cluster.settled, CUT_WAIT_S)
    assert cluster.owner() is owner, "the owner was well all the time"


@pytest.mark.further  # each time: a frozen node in test_cluster.py, and tests/integration/etcd
def test_a_node_that_does_not_reach_etcd_gives_up_in_time(cluster: BareCluster, hosts: Hosts) -> None:
    """The owner too: another leads, and what it ran is given up before that runs elsewhere."""
    for node in cluster.members:
        node.noted()
    victim = cluster.owner()
    number = cluster.members.index(victim)
    hosts.cut(number, f"{hosts.net}.1")
    until("the others have all", lambda: cluster.others_have_all(victim), CUT_WAIT_S)
    given_up = {shard: at_ns for at_ns, sign, shard in victim.noted() if sign == "-"}
    notes = [note for node in cluster.members if node is not victim for note in node.noted()]
    taken_in = {shard: at_ns for at_ns, sign, shard in notes if sign == "+"}
    assert given_up
    assert all(taken_in[shard] > at_ns for shard, at_ns in given_up.items()), "no shard ran at two nodes"
    hosts.heal(number, f"{hosts.net}.1")
    until("all runs where it belongs", cluster.settled, CUT_WAIT_S)
