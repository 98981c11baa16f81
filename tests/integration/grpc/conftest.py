"""An owner and a node over real sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.streams import NodeUnderTest, OwnerUnderTest


@pytest.fixture
def node() -> Iterator[NodeUnderTest]:
    node = NodeUnderTest()
    node.start()
    yield node
    node.stop()


@pytest.fixture
def owner() -> Iterator[OwnerUnderTest]:
    owner = OwnerUnderTest()
    yield owner
    owner.peers.close()
