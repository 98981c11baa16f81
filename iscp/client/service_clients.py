"""The parts of the Python client that speak of nodes and shards, tokens and the audit, builds, and changefeeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from iscp.client.channel.silent_calls import Caller, listing
from iscp.client.codec.api_messages import (
    AUDIT_ENTRY,
    CONSUMER,
    EVENT,
    JOB_NAME,
    LOG_PAGE,
    NODE_VERBS,
    PLACED_SHARD,
    SHARD_VERBS,
    TOKEN,
    builds_from_wire,
    page_from_wire,
    places_to_wire,
    role_to_wire,
)
from iscp.client.codec.message_codec import to_request
from iscp.client.request_parts import (
    FEED_ANSWER_S,
    answer_within_s,
    feed_request,
    new_request_id,
    place_after,
    places_after,
    with_wait,
)
from iscp.model.access.authorization import AuditEntry, TokenRecord, id_of
from iscp.model.api.api_requests import (
    CHANGES,
    ChangePage,
    ConsumerInfo,
    EventView,
    JobName,
    LogPage,
    LogPlace,
    NodeVerb,
    PlacedShard,
    ShardVerb,
)
from iscp.model.build.build_progress import BuildView
from iscp.model.values.errors import OutcomeUnknown
from iscp.model.values.untrusted_values import require_seconds
from iscp.wire.v1 import (
    access_pb2,
    access_pb2_grpc,
    builds_pb2,
    builds_pb2_grpc,
    feeds_pb2_grpc,
    operator_pb2,
    operator_pb2_grpc,
)


class OperatorClient:
    """`client.operator`; all may be repeated but `split` and `merge`, and answer the same where it was so already."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._operator = operator_pb2_grpc.OperatorStub(caller.channel)

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
            operator_pb2.ReshardRequest,
            merge=merge,
            table=table,
            range_id=range_id,
            request_id=new_request_id(),
        )
        return int(self._caller.call(self._operator.Reshard, request, changes=True).ranges)

    def rebalance(self, *, dry_run: bool = False) -> list[PlacedShard]:
        """Move shards to their preferred nodes, and return which; `dry_run` only returns them."""
        request = to_request(operator_pb2.RebalanceRequest, dry_run=dry_run)
        return _shards(self._caller.call(listing(self._operator.Rebalance), request, changes=not dry_run))

    def placement(self, table: str = "") -> list[PlacedShard]:
        """Return where the shards of a table are, and should be; of all tables if none is named."""
        request = to_request(operator_pb2.GetPlacementRequest, table=table)
        return _shards(self._caller.call(listing(self._operator.GetPlacement), request))

    def events(self, after: EventView | None = None, *, wait_s: float = 0.0, table: str = "") -> list[EventView]:
        """Return what owners have seen and decided after that event, as far as it is known still; the oldest first.

        The call waits for up to `wait_s` (at most 60 s) until there is something. If `table` is given, only events of
        its shards are returned; raises TableNotFound.
        """
        term, number = place_after(after)
        request = to_request(
            operator_pb2.GetEventsRequest,
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
        found = self._caller.call(self._operator.ListConsumers, to_request(operator_pb2.ListConsumersRequest))
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
        request = to_request(operator_pb2.GetLogsRequest, after=places_to_wire(places), **wanted)
        return [LOG_PAGE.from_wire(page) for page in self._caller.call(listing(self._operator.GetLogs), request)]

    def _change_node(self, verb: NodeVerb, node_id: str) -> operator_pb2.ChangeNodeResponse:
        request = to_request(operator_pb2.ChangeNodeRequest, verb=NODE_VERBS.to_wire(verb), node_id=node_id)
        response: operator_pb2.ChangeNodeResponse = self._caller.call(self._operator.ChangeNode, request, changes=True)
        return response

    def _change_shards(self, verb: ShardVerb, table: str, range_id: int, node_id: str) -> int:
        request = to_request(
            operator_pb2.ChangeShardsRequest,
            verb=SHARD_VERBS.to_wire(verb),
            table=table,
            range_id=range_id,
            node_id=node_id,
        )
        return int(self._caller.call(self._operator.ChangeShards, request, changes=True).changed)


def _shards(found: Iterable[operator_pb2.PlacementPage]) -> list[PlacedShard]:
    return [PLACED_SHARD.from_wire(each) for page in found for each in page.shards]


class AccessClient:
    """`client.access`: for admins of an account. An empty account is the caller's own, or all for who acts for all."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._access = access_pb2_grpc.AccessStub(caller.channel)

    def create_token(self, role: str, *, ttl_s: float, account: str = "", note: str = "") -> tuple[str, TokenRecord]:
        """Create a token; return its secret, which cannot be shown again, and its record. It is valid for `ttl_s`
        seconds.

        The call is not repeated where it may have been carried out: then it raises OutcomeUnknown, and there may be a
        token that nobody has. See `tokens`, and revoke it.
        """
        request = to_request(
            access_pb2.CreateTokenRequest,
            account=account,
            role=role_to_wire(role),
            ttl_s=require_seconds(ttl_s, "ttl_s"),
            note=note,
        )
        try:
            response = self._caller.call(self._access.CreateToken, request, changes=True, once=True)
        except OutcomeUnknown as error:
            remedy = "Revoke the token that may have been made: the newest one of `iscp-admin token list`"
            raise OutcomeUnknown.from_error(error, remedy=remedy, code=error.code) from error
        return response.secret, TOKEN.from_wire(response.token, digest="")

    def tokens(self, *, account: str = "") -> list[TokenRecord]:
        """Return the tokens, the newest first, with those that have ended; each without its secret and digest."""
        request = to_request(access_pb2.ListTokensRequest, account=account)
        found = self._caller.call(listing(self._access.ListTokens), request)
        return [TOKEN.from_wire(token, digest="") for page in found for token in page.tokens]

    def revoke_token(self, token_id: str, *, account: str = "") -> bool:
        """Revoke a token; return False if there is none, or no longer: also where an answer was lost, and the call was
        repeated.

        Within seconds every node refuses it. `token_id`: or the token itself, of which the id alone is sent.
        """
        token_id = id_of(token_id) or token_id
        request = to_request(access_pb2.RevokeTokenRequest, account=account, token_id=token_id)
        return bool(self._caller.call(self._access.RevokeToken, request, changes=True).revoked)

    def audit(self, *, account: str = "", since_s: float = 0.0, method: str = "", limit: int = 0) -> list[AuditEntry]:
        """Return calls that changed something, newest first: since a time (Unix seconds), and at most `limit` (0:
        1,000).
        """
        request = to_request(
            access_pb2.ReadAuditRequest,
            account=account,
            since_s=require_seconds(since_s, "since_s"),
            method=method,
            limit=limit,
        )
        found = self._caller.call(listing(self._access.ReadAudit), request)
        return [AUDIT_ENTRY.from_wire(entry) for page in found for entry in page.entries]


class BuildClient:
    """`client.builds`: the first snapshots of large tables, which all nodes build. Raises TableNotFound.

    A node that is too old to build says PermanentError.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._builds = builds_pb2_grpc.BuildsStub(caller.channel)

    def list(self, table: str = "") -> list[BuildView]:
        """The builds of a table, or (empty) of all, what is being built first."""
        request = to_request(builds_pb2.GetBuildsRequest, table=table)
        return builds_from_wire(self._caller.call(listing(self._builds.GetBuilds), request))

    def abort(self, table: str, name: str = "", *, account: str = "") -> int:
        """Pause a job that is being built, or (empty) all of the table, of all accounts; return how many tasks end by
        that.

        The staged rows are retained until it is resumed. Raises JobNotFound; InvalidRequest where nothing is to be
        built.
        """
        job = JOB_NAME.to_wire(JobName(table, name, account))
        request = to_request(builds_pb2.AbortBuildRequest, job=job)
        return int(self._caller.call(self._builds.AbortBuild, request, changes=True).tasks)

    def prioritize(self, table: str) -> bool:
        """Build the table before all others that wait; False where it is its turn already, or its turn is next."""
        request = to_request(builds_pb2.PrioritizeBuildRequest, table=table)
        return bool(self._caller.call(self._builds.PrioritizeBuild, request, changes=True).changed)

    def split(self, table: str, *, range_id: int = 0) -> int:
        """Cut a range of what is to be built in two, or (0) all of them; how many ranges are still to be built then."""
        return self._reshard(False, table, range_id)

    def merge(self, table: str, *, range_id: int = 0) -> int:
        """Put a range together with its other half, or (0) all pairs of the smallest; how many there are then."""
        return self._reshard(True, table, range_id)

    def _reshard(self, merge: bool, table: str, range_id: int) -> int:
        request = to_request(builds_pb2.ReshardBuildRequest, merge=merge, table=table, range_id=range_id)
        return int(self._caller.call(self._builds.ReshardBuild, request, changes=True).ranges)


class FeedClient:
    """`client.feeds`: the changefeeds that jobs write, read by the node that is called.

    Whoever can read the feed's table itself needs no node: iscp.changefeed reads it wherever it is. The caller keeps
    the cursor; the node stores none.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._feeds = feeds_pb2_grpc.FeedsStub(caller.channel)

    def read(
        self,
        table: str,
        name: str,
        cursor: str = "",
        *,
        limit: int = CHANGES,
        wait_s: float = 0.0,
        account: str = "",
    ) -> ChangePage:
        """Return the changes of the job's feed behind a cursor, the text that an earlier page has (empty: from the
        first change that is left); `limit` of them at most, and fewer where they are large.

        Where there are none the call waits up to `wait_s` seconds (at most 60), and returns a page without changes
        then. Keys and rows are as JSON has them. Raises JobNotFound; InvalidRequest for a job that writes no feed and
        for a cursor of another feed; CursorBehind where some of what comes next was purged; TimedOut, QueueFull.
        """
        request = feed_request(table, name, account, cursor, limit)
        within_s = answer_within_s(wait_s, "wait_s", FEED_ANSWER_S)
        method = with_wait(self._feeds.ReadFeed, FEED_ANSWER_S)
        return page_from_wire(self._caller.call(method, request, timeout_s=within_s))

    def follow(
        self,
        table: str,
        name: str,
        cursor: str = "",
        *,
        limit: int = CHANGES,
        wait_s: float = 20.0,
        account: str = "",
    ) -> Iterator[ChangePage]:
        """Yield pages with changes as they come, without end, each from where the one before it ends.

        A call waits up to `wait_s` seconds, and another one follows it. Raises what `read` does; the cursor of the last
        page is where to go on then.
        """
        while True:
            page = self.read(table, name, cursor, limit=limit, wait_s=wait_s, account=account)
            if page.changes:
                yield page
            cursor = page.cursor
