"""Relays through which processes reach each other, each of which can be cut: nobody needs to be root for it.

While a link is cut, bytes are neither carried nor refused, in both directions, as where packets are lost: connections
stay, new ones are taken and get no answer. What was on its way arrives when the link is there again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

CHUNK_BYTES = 1 << 16
START_WAIT_S = 10.0
"""How long a relay may take to listen; then the soak fails."""


class Links:
    """All relays of a soak, on a thread with a loop of its own; used as a context."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._open: dict[str, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def relay(self, name: str, port: int) -> int:
        """Carry what comes to the port that is returned to `port`, both on the loopback interface, as the link
        `name`.
        """
        return int(self._run(self._listen(name, port)))

    def cut(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self._open[name].clear)

    def heal(self, name: str) -> None:
        self._loop.call_soon_threadsafe(self._open[name].set)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_WAIT_S)

    async def _listen(self, name: str, port: int) -> int:
        is_open = self._open[name] = asyncio.Event()
        is_open.set()

        async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            try:
                await self._carry(is_open, reader, writer, port)
            finally:
                writer.close()

        server = await asyncio.start_server(carry, "127.0.0.1", 0)
        return int(server.sockets[0].getsockname()[1])

    async def _carry(
        self, is_open: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        await is_open.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return
        ways = [
            asyncio.ensure_future(_pump(is_open, source, sink))
            for source, sink in ((reader, far_writer), (far_reader, writer))
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            far_writer.close()

    async def _cancel(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(is_open: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            await is_open.wait()
            writer.write(chunk)
            await writer.drain()
