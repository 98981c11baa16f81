"""Pages of jobs' feeds as messages."""

from __future__ import annotations

from iscp.adapters.grpc.codec.json_objects import json_object, object_json
from iscp.core.api.feed_views import CHANGES, ChangePage, FeedChange, FeedRequest
from iscp.wire.v1 import feeds_pb2 as pb


def feed_request_from_wire(message: pb.ReadFeedRequest, wait_s: float) -> FeedRequest:
    """Return the request, which waits up to `wait_s` for changes. Raises InvalidRequest for what is out of bounds."""
    return FeedRequest(message.cursor, message.limit or CHANGES, wait_s)


def page_to_wire(page: ChangePage) -> pb.ChangePage:
    return pb.ChangePage(changes=map(_change_to_wire, page.changes), cursor=page.cursor)


def page_from_wire(message: pb.ChangePage) -> ChangePage:
    """Return the page. Raises PermanentError for columns that are no JSON."""
    return ChangePage(tuple(map(_change_from_wire, message.changes)), message.cursor)


def _change_to_wire(change: FeedChange) -> pb.FeedChange:
    return pb.FeedChange(
        ulid=change.ulid,
        shard=change.shard,
        operation=change.operation,
        key_json=object_json(change.key),
        row_json=object_json(change.row),
        version=change.version,
        net=change.net,
    )


def _change_from_wire(message: pb.FeedChange) -> FeedChange:
    return FeedChange(
        ulid=message.ulid,
        shard=message.shard,
        operation=message.operation,
        row=json_object(message.row_json),
        key=json_object(message.key_json),
        version=message.version if message.HasField("version") else None,
        net=message.net,
    )
