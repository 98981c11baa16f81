"""The ring: the same for the same members, even, and stable when a node leaves."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uhashring import HashRing

from iscp.core.ids import ShardId
from iscp.core.ring import VNODES, Ring, ring_hash

SHARDS = [ShardId(f"table-{n}") for n in range(5_000)]


def test_the_hash_is_crc32_then_fmix32() -> None:
    # crc32("123456789") is 0xCBF43926, the check value of the CRC catalogue; fmix32(0) is 0, crc32("") as well.
    assert ring_hash("") == 0
    assert ring_hash("123456789") == _fmix32(0xCBF43926)


def _fmix32(h: int) -> int:
    h = ((h ^ h >> 16) * 2246822507) % 2**32
    h = ((h ^ h >> 13) * 3266489909) % 2**32
    return h ^ h >> 16


@given(st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=6), st.randoms())
def test_equal_members_give_equal_rings_in_whatever_order(node_ids: set[str], random: object) -> None:
    shuffled = list(node_ids)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = Ring(node_ids, vnodes=20), Ring(shuffled, vnodes=20)
    assert [one.preferred(shard) for shard in SHARDS[:50]] == [other.preferred(shard) for shard in SHARDS[:50]]


def test_a_shard_belongs_where_the_library_finds_it() -> None:
    names = [f"node-{n}" for n in range(5)]
    known, ring = HashRing(names, hash_fn=ring_hash, vnodes=VNODES), Ring(names)
    assert [ring.preferred(shard) for shard in SHARDS] == [known.get_node(str(shard)) for shard in SHARDS]


def test_the_share_of_the_ring_is_even() -> None:
    """The most loaded of 20 nodes has at most 1.05 times the mean of the ring itself."""
    points = HashRing([f"node-{n}" for n in range(20)], hash_fn=ring_hash, vnodes=VNODES).get_points()
    share: Counter[str] = Counter()
    for (below, _), (above, node_id) in pairwise(points):
        share[node_id] += above - below
    share[points[0][1]] += points[0][0] + 2**32 - points[-1][0]
    assert max(share.values()) / (2**32 / 20) <= 1.05


def test_only_the_shards_of_a_node_that_leaves_move() -> None:
    before, after = Ring(["a", "b", "c"]), Ring(["a", "c"])
    for shard in SHARDS:
        if before.preferred(shard) != "b":
            assert after.preferred(shard) == before.preferred(shard)


def test_without_nodes_there_is_no_preference() -> None:
    with pytest.raises(LookupError):
        Ring([]).preferred(ShardId("a"))
