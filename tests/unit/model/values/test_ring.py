"""The ring: the same for the same members, even, and stable when a node leaves."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from uhashring import HashRing

from iscp.model.values.ids import ShardId
from iscp.model.values.ring import VNODES, Ring, ring_hash

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


@given(st.lists(st.sets(st.sampled_from("abcdefgh"), min_size=1), min_size=1, max_size=5), st.integers(1, 40))
@example([{"a", "b"}, {"b"}, {"a", "b", "c"}], 2_000)
def test_members_that_come_and_go_leave_what_a_library_builds_of_the_last(members: list[set[str]], vnodes: int) -> None:
    """Caching a node's points from one ring to the next changes no ring; compared at every point and beside it."""
    for node_ids in members:
        ring = Ring(node_ids, vnodes=vnodes)
        known = HashRing(sorted(node_ids), hash_fn=ring_hash, vnodes=vnodes).get_points()
        assert places(ring) == known


def test_where_points_fall_together_the_last_node_has_the_place() -> None:
    """As if each node wrote its points over those of the nodes before it. Rare with 32 bits: found by search."""
    names = ["c-5", "c-1070"]
    points = [{ring_hash(f"{name}-{n}") for n in range(VNODES)} for name in names]
    assert points[0] & points[1], "they share a point"
    for order in (names, names[::-1]):
        assert places(Ring(order)) == HashRing(sorted(names), hash_fn=ring_hash, vnodes=VNODES).get_points()


def places(ring: Ring) -> list[tuple[int, str]]:
    """Each point of a ring, with whose it is."""
    return [(point, ring.node_ids[rank]) for point, rank in zip(ring._points, ring._ranks, strict=True)]


def test_a_thousand_nodes_share_a_ring_of_bounded_size() -> None:
    ring = Ring(f"node-{n}" for n in range(1_000))
    assert sys.getsizeof(ring._points) + sys.getsizeof(ring._ranks) <= 9 * 1_000 * VNODES
    assert {ring.preferred(ShardId(f"table-{n}")) for n in range(20_000)} == set(ring.node_ids)


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
