"""The part of the Python client that reads the changefeeds of jobs."""

from __future__ import annotations

from collections.abc import Iterator

from iscp.client.channel.silent_calls import Caller
from iscp.client.codec.api_messages import page_from_wire
from iscp.client.request_parts import FEED_ANSWER_S, answer_within_s, feed_request, with_wait
from iscp.model.api.api_requests import CHANGES, ChangePage
from iscp.wire.v1 import feeds_pb2_grpc as pb_grpc


class FeedClient:
    """`client.feeds`: the changefeeds that jobs write, read by the node that is called.

    Whoever can read the feed's table itself needs no node: iscp.changefeed reads it wherever it is. The caller keeps
    the cursor; the node stores none.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._feeds = pb_grpc.FeedsStub(caller.channel)

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
