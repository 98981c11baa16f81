"""A call between nodes names the node that it is meant for; any other refuses it and says why."""

from __future__ import annotations

import pytest

from iscp.adapters.grpc.channel.call_metadata import (
    KEEPALIVE_MS,
    NODE_KEY,
    PING_INTERVAL_MIN_MS,
    WIRE_FORMAT_KEY,
    Meant,
    meant_of,
    refuse_other,
)
from iscp.core.values.errors import ConfigurationError, Unavailable
from iscp.core.values.members import WIRE_FORMAT

MEANT = Meant("/iscp/lake ü", "iscp-0", 17, "iscp-1")


def test_whom_a_call_means_comes_back_the_same() -> None:
    metadata = MEANT.to_metadata()
    assert all(value.isascii() for _, value in metadata)
    assert meant_of((*metadata, ("user-agent", "x"))) == MEANT


@pytest.mark.parametrize("changed", [{NODE_KEY: "iscp-0"}, {NODE_KEY: "iscp-0/x"}, {WIRE_FORMAT_KEY: "x"}, {}], ids=str)
def test_a_call_that_says_nothing_is_refused(changed: dict[str, str]) -> None:
    metadata = {**dict(MEANT.to_metadata()), **changed} if changed else {}
    with pytest.raises(ConfigurationError, match="whom it means"):
        meant_of(metadata.items())


def test_who_is_meant_lets_it_in() -> None:
    for wire_format in (WIRE_FORMAT - 1, WIRE_FORMAT, WIRE_FORMAT + 1):
        refuse_other(Meant("/c", "n", 1, "o", wire_format), "/c", "n", 1)


@pytest.mark.parametrize(
    ("meant", "words"),
    [
        (Meant("/d", "n", 1, "o"), r"advertise: this is a node of the cluster '/c', not of '/d'\. Have n advertise"),
        (Meant("/c", "m", 1, "o"), r"advertise: this is the node 'n', not 'm'\. Have m advertise"),
        (Meant("/c", "n", 1, "o", WIRE_FORMAT + 2), r"o speaks wire format \d+, and n \d+\. Upgrade the nodes"),
    ],
    ids=["cluster", "node", "wire format"],
)
def test_others_refuse_it_for_good(meant: Meant, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        refuse_other(meant, "/c", "n", 1)


def test_another_life_of_the_node_refuses_it_for_now() -> None:
    with pytest.raises(Unavailable, match="in epoch 2, not 1"):
        refuse_other(Meant("/c", "n", 1, "o"), "/c", "n", 2)


def test_servers_bear_the_pings_of_their_clients() -> None:
    assert PING_INTERVAL_MIN_MS < KEEPALIVE_MS
