"""Streams of server-sent events, by which a board stays as it is in the cluster; their number is bounded."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager

from iscp.core.values.errors import QueueFull

STREAMS_MAX = 64
"""Streams of a node at a time; one more is refused, and its page is not live."""

STREAMS_PER_VIEWER_MAX = 16
"""Streams of one viewer among these; one more is refused."""

PAUSE_S = 3.0
"""Seconds between two contents of a stream."""

STREAM_S = 600.0
"""Seconds after which a stream ends; its browser opens it again, and shows who it is."""

RETRY_MS = 3_000
"""Milliseconds that a browser waits before it opens a stream again."""


class LiveStreams:
    """The streams of a node, used by the thread of its event loop alone."""

    def __init__(self) -> None:
        self._by_viewer: Counter[str] = Counter()
        self._end = asyncio.Event()

    def refuse_beyond(self, scope: str) -> None:
        """Raise QueueFull where there is no place for one more stream of a viewer."""
        if self._by_viewer.total() >= STREAMS_MAX or self._by_viewer[scope] >= STREAMS_PER_VIEWER_MAX:
            raise QueueFull("there are too many live pages", remedy="Close others; this one can be reloaded")

    @contextmanager
    def place(self, scope: str) -> Iterator[None]:
        """Hold a place for a stream of a viewer. Raises QueueFull."""
        self.refuse_beyond(scope)
        self._by_viewer[scope] += 1
        try:
            yield
        finally:
            self._by_viewer[scope] -= 1
            if not self._by_viewer[scope]:
                del self._by_viewer[scope]

    @property
    def count(self) -> int:
        return self._by_viewer.total()

    def end_all(self) -> None:
        """End all streams at their next pause, which is cut short."""
        self._end.set()

    async def events(self, content: Callable[[], Awaitable[str]]) -> AsyncIterator[str]:
        """Yield the content as events, each time it has changed, until the stream is old or all are to end."""
        yield f"retry: {RETRY_MS}\n\n"
        loop, last = asyncio.get_running_loop(), ""
        until_s = loop.time() + STREAM_S
        while loop.time() < until_s and not self._end.is_set():
            newest = await content()
            # A comment shows that the browser is still there.
            yield ": the same\n\n" if newest == last else event("board", newest)
            last = newest
            try:
                await asyncio.wait_for(self._end.wait(), PAUSE_S)
            except TimeoutError:
                continue


def event(name: str, content: str) -> str:
    """Return an event whose data is one line of JSON, so that no content can make another event."""
    return f"event: {name}\ndata: {json.dumps(content)}\n\n"
