"""The cluster, its shards and what its owners have decided, as messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from iscp.adapters.grpc.codec.message_codec import Codec, pages
from iscp.adapters.tls.endpoint import FORMAT_VERSION
from iscp.core.api.api_views import ClusterView, ConsumerInfo, EventView, LeftOutJob, NodeView, PlacedShard, ShardView
from iscp.wire.v1 import admin_pb2 as pb
from iscp.wire.v1 import operator_pb2

EVENT = Codec(EventView, operator_pb2.OwnerEvent)
CONSUMER = Codec(ConsumerInfo, operator_pb2.ConsumerInfo)
PLACED_SHARD = Codec(PlacedShard, operator_pb2.PlacedShard)

_SHARD = Codec(ShardView, pb.Shard)
_CLUSTER = Codec(ClusterView, pb.Cluster, nodes=Codec(NodeView, pb.Node), left_out=Codec(LeftOutJob, pb.LeftOut))


def cluster_to_wire(cluster: ClusterView) -> Iterator[pb.ClusterPage]:
    """Yield a first page with everything but the shards, which follow in as many pages as it takes."""
    yield pb.ClusterPage(cluster=_CLUSTER.to_wire(cluster, format_version=FORMAT_VERSION))
    for page in pages(map(_SHARD.to_wire, cluster.shards)):
        yield pb.ClusterPage(shards=page)


def cluster_from_wire(messages: Iterable[pb.ClusterPage]) -> ClusterView:
    head = pb.Cluster()
    shards: list[ShardView] = []
    for message in messages:
        if message.HasField("cluster"):
            head = message.cluster
        shards += map(_SHARD.from_wire, message.shards)
    return _CLUSTER.from_wire(head, shards=tuple(shards))


def event_pages(events: Iterable[EventView]) -> Iterator[operator_pb2.EventPage]:
    for page in pages(map(EVENT.to_wire, events)):
        yield operator_pb2.EventPage(events=page)
