"""Whatever is sent to any service of a node, it answers with a status that says nothing of its insides, and lives."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from hypothesis import strategies as st

from iscp.app.settings import load_settings
from iscp.server.node.owner_streams import describe
from tests.e2e.harness import NODE_ID, Cluster
from tests.fakes.attacked_node import INSIDES, AttackedNode, play
from tests.fakes.random_calls import METHODS, random_calls

MORE_MIB = 150
"""What the node may need besides: gRPC's buffers, and the log of the jobs that happened to be valid."""

LONG_S = 600.0
EXAMPLES = 400


def fuzz(node: AttackedNode, number: int, examples: int) -> Counter[grpc.StatusCode]:
    """So many calls, which `number` alone decides; how they ended."""
    ended: Counter[grpc.StatusCode] = Counter()

    def check(data: st.DataObject) -> None:
        call = data.draw(random_calls(node))
        code, words = call.make(channel)
        assert not INSIDES.search(words), words
        assert code is not grpc.StatusCode.INTERNAL or words == "Exception deserializing request!", words
        assert node.alive()
        ended[code] += 1

    with grpc.insecure_channel(node.address) as channel:
        play(examples, check, number)
    return ended


def test_random_calls_of_all_services_are_answered(attacked: AttackedNode) -> None:
    before_mib = attacked.memory_mib
    ended = fuzz(attacked, 0, EXAMPLES)
    assert {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT} <= set(ended)
    attacked.assert_unharmed(before_mib, MORE_MIB)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AttackedNode]:
    """With its engine, and all services."""
    cluster = Cluster(tmp_path)
    try:
        cluster.start()
        child, config = cluster.node.child, load_settings(cluster.layout.config(NODE_ID), {})
        epoch = describe(cluster.endpoint, tls=None).epoch
        yield AttackedNode(
            cluster.endpoint,
            "",
            child.pid,
            lambda: child.poll() is None,
            cluster.node.log,
            config.etcd_prefix,
            NODE_ID,
            epoch,
        )
    finally:
        cluster.stop()


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_random_calls_for_ten_minutes_are_answered(node: AttackedNode) -> None:
    assert len({method.containing_service.full_name for method in METHODS}) == 7
    fuzz(node, 0, EXAMPLES)
    before_mib, end_s, number = node.memory_mib, time.monotonic() + LONG_S, 1
    while time.monotonic() < end_s:
        fuzz(node, number, EXAMPLES)
        number += 1
    node.assert_unharmed(before_mib, MORE_MIB)
