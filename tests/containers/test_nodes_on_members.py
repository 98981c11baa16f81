"""Real nodes, each with a member of its own for its etcd: whoever is left alone with its member gives up in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bare_cluster import BareCluster, until
from tests.containers.etcd_members import EtcdMembers
from tests.containers.member_faults import fault

SHARDS = 30
TTL_S, MARGIN_S = 3.0, 0.5
WAIT_S = 60.0


@pytest.fixture
def cluster(members: EtcdMembers, tmp_path: Path, prefix: str) -> Iterator[BareCluster]:
    made = BareCluster(tmp_path, len(members.members), SHARDS, TTL_S, MARGIN_S)
    made.etcd.kill()  # its own
    for node, member in zip(made.members, members.members, strict=True):
        etcd = replace(node.config.etcd, endpoints=(member.endpoint,), prefix=prefix.rstrip("/"))
        node.config = replace(node.config, etcd=etcd)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.mark.further  # each time: test_the_owner_reaches_the_lost_member_alone
@pytest.mark.parametrize("kind", ["cut", "freeze", "kill"])
def test_the_member_of_the_owner_is_lost(cluster: BareCluster, members: EtcdMembers, kind: str) -> None:
    """The others run all of it, and no shard ever ran at two nodes at once."""
    victim = cluster.owner()
    with fault(members, kind, members.members[cluster.members.index(victim)]):
        until("the others have all", lambda: cluster.others_have_all(victim), WAIT_S)
        assert cluster.owner() is not victim
    until("all runs where it belongs", cluster.settled, WAIT_S)
    notes = sorted((at_ns, sign, shard) for node in cluster.members for at_ns, sign, shard in node.noted())
    signs: dict[str, list[str]] = {}
    for _, sign, shard in notes:
        signs.setdefault(shard, []).append(sign)
    assert len(signs) == SHARDS
    for shard, changes in signs.items():
        assert changes == ["+", "-"] * (len(changes) // 2) + ["+"], shard
    assert any(len(changes) > 1 for changes in signs.values())
