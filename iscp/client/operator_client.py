"""The part of the Python client that speaks of nodes and shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from iscp.client.channel.silent_calls import Caller, listing
from iscp.client.codec.api_messages import (
    CONSUMER,
    EVENT,
    LOG_PAGE,
    NODE_VERBS,
    PLACED_SHARD,
    SHARD_VERBS,
    places_to_wire,
)
from iscp.client.codec.message_codec import to_request
from iscp.client.request_parts import answer_within_s, new_request_id, place_after, places_after
from iscp.model.api.api_requests import LogPage, LogPlace, NodeVerb, ShardVerb
from iscp.model.api.api_views import ConsumerInfo, EventView, PlacedShard
from iscp.wire.v1 import operator_pb2 as pb
from iscp.wire.v1 import operator_pb2_grpc as pb_grpc


class OperatorClient:
    """`client.operator`; all may be repeated but `split` and `merge`, and answer the same where it was so already."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._operator = pb_grpc.OperatorStub(caller.channel)

    def cordon(self, node_id: str) -> bool:
        """Give the node no further shards, and leave it those it has; return False if it was so already."""
        return self._change_node(NodeVerb.CORDON, node_id).changed

    def uncordon(self, node_id: str) -> bool:
        """Take back `cordon` and `drain`; return False if there was neither."""
        return self._change_node(NodeVerb.UNCORDON, node_id).changed

    def drain(self, node_id: str) -> int:
        """Have the node give up its shards and get none; return how many it still has. Call it again until there are
        none.
        """
        return int(self._change_node(NodeVerb.DRAIN, node_id).shards)

    def move(self, table: str, node_id: str, *, range_id: int = 0) -> int:
        """Bring a table's shards to a node, until the next rebalance; return how many are elsewhere now."""
        return self._change_shards(ShardVerb.MOVE, table, range_id, node_id)

    def pin(self, table: str, node_id: str, *, range_id: int = 0) -> int:
        """Pin a table's shards to a node, while it is there; return how many were not pinned to it."""
        return self._change_shards(ShardVerb.PIN, table, range_id, node_id)

    def unpin(self, table: str, *, range_id: int = 0) -> int:
        """Unpin shards, which return to their preferred nodes with the next rebalance; return how many were pinned."""
        return self._change_shards(ShardVerb.UNPIN, table, range_id, "")

    def split(self, table: str, *, range_id: int = 0) -> int:
        """Cut a range of a table's keys in two, or (0) all of them; return how many ranges it has now."""
        return self._reshard(False, table, range_id)

    def merge(self, table: str, *, range_id: int = 0) -> int:
        """Put a range together with its other half, or (0) all pairs of the smallest; return how many ranges there are
        now.
        """
        return self._reshard(True, table, range_id)

    def _reshard(self, merge: bool, table: str, range_id: int) -> int:
        request = to_request(
            pb.ReshardRequest,
            merge=merge,
            table=table,
            range_id=range_id,
            request_id=new_request_id(),
        )
        return int(self._caller.call(self._operator.Reshard, request, changes=True).ranges)

    def rebalance(self, *, dry_run: bool = False) -> list[PlacedShard]:
        """Move shards to their preferred nodes, and return which; `dry_run` only returns them."""
        request = to_request(pb.RebalanceRequest, dry_run=dry_run)
        return _shards(self._caller.call(listing(self._operator.Rebalance), request, changes=not dry_run))

    def placement(self, table: str = "") -> list[PlacedShard]:
        """Return where the shards of a table are, and should be; of all tables if none is named."""
        request = to_request(pb.GetPlacementRequest, table=table)
        return _shards(self._caller.call(listing(self._operator.GetPlacement), request))

    def events(self, after: EventView | None = None, *, wait_s: float = 0.0, table: str = "") -> list[EventView]:
        """Return what owners have seen and decided after that event, as far as it is known still; the oldest first.

        The call waits for up to `wait_s` (at most 60 s) until there is something. If `table` is given, only events of
        its shards are returned; raises TableNotFound.
        """
        term, number = place_after(after)
        request = to_request(
            pb.GetEventsRequest,
            after_owner_rev=term,
            after_number=number,
            wait_s=wait_s,
            table=table,
        )
        found = self._caller.call(
            listing(self._operator.GetEvents), request, timeout_s=answer_within_s(wait_s, "wait_s")
        )
        return [EVENT.from_wire(each) for page in found for each in page.events]

    def consumers(self) -> list[ConsumerInfo]:
        """Return the kinds of consumer that jobs may name, as the owner has them."""
        found = self._caller.call(self._operator.ListConsumers, to_request(pb.ListConsumersRequest))
        return [CONSUMER.from_wire(each) for each in found.consumers]

    def node_logs(
        self,
        node_id: str,
        *,
        after: Mapping[str, LogPlace] | None = None,
        since_s: float = 0.0,
        tail: int = 0,
        level: str = "",
    ) -> list[LogPage]:
        """Return the newest `tail` lines of a node's log (0: 10,000), of the last `since_s` seconds (0: all that it
        retains).

        `after`, the `place` of the last page by its node id: the lines since then.
        """
        return self._logs(after, node_id=node_id, since_s=since_s, tail=tail, level=level)

    def job_logs(
        self,
        table: str,
        name: str,
        *,
        account: str = "",
        after: Mapping[str, LogPlace] | None = None,
        since_s: float = 0.0,
        tail: int = 0,
        level: str = "",
    ) -> list[LogPage]:
        """Return lines of all nodes about the job, or about its table and no other job; the rest is as in
        `node_logs`.
        """
        named = {"table": table, "job_name": name, "account": account}
        return self._logs(after, **named, since_s=since_s, tail=tail, level=level)

    def _logs(self, after: Mapping[str, LogPlace] | None, **wanted: Any) -> list[LogPage]:
        places = places_after(after)
        request = to_request(pb.GetLogsRequest, after=places_to_wire(places), **wanted)
        return [LOG_PAGE.from_wire(page) for page in self._caller.call(listing(self._operator.GetLogs), request)]

    def _change_node(self, verb: NodeVerb, node_id: str) -> pb.ChangeNodeResponse:
        request = to_request(pb.ChangeNodeRequest, verb=NODE_VERBS.to_wire(verb), node_id=node_id)
        response: pb.ChangeNodeResponse = self._caller.call(self._operator.ChangeNode, request, changes=True)
        return response

    def _change_shards(self, verb: ShardVerb, table: str, range_id: int, node_id: str) -> int:
        request = to_request(
            pb.ChangeShardsRequest,
            verb=SHARD_VERBS.to_wire(verb),
            table=table,
            range_id=range_id,
            node_id=node_id,
        )
        return int(self._caller.call(self._operator.ChangeShards, request, changes=True).changed)


def _shards(found: Iterable[pb.PlacementPage]) -> list[PlacedShard]:
    return [PLACED_SHARD.from_wire(each) for page in found for each in page.shards]
