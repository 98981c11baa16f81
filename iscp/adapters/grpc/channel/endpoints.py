"""The nodes that a client may call, and which of them it calls next."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from iscp.adapters.system.process_fork import OwnProcess

ENDPOINT_AVOIDED_S = 30.0
"""How long a node that could not answer is called only where all others could not either."""


class Endpoints:
    """Several nodes' addresses. Whoever answers is called on and on. Safe to use from several threads.

    Times are of any clock that does not go back.
    """

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self.addresses = addresses
        self._lock = threading.Lock()
        self._failed_s: dict[str, float] = {}
        self._current = addresses[0]

    def choose(self, now_s: float) -> str:
        with self._lock:
            bad_s = {each: at_s for each, at_s in self._failed_s.items() if now_s - at_s < ENDPOINT_AVOIDED_S}
            if self._current in bad_s:
                # Of those that have not failed, in their order, the first; else whoever did so first.
                self._current = min(self.addresses, key=lambda each: bad_s.get(each, float("-inf")))
            return self._current

    def avoid(self, address: str, now_s: float) -> None:
        with self._lock:
            self._failed_s[address] = now_s


_OF_FORMER_PROCESSES: list[dict[str, Any]] = []
"""Channels that were open at a fork: to close them would wait for threads that are gone."""


class EndpointChannel:
    """The part of the channels to several nodes, of threads or of asyncio, that clients use: each call names its node.

    A channel is opened when its node is called first. A fork opens others, as calls by those of the process that it
    comes from may wait without end.
    """

    def __init__(self, addresses: tuple[str, ...], open_channel: Callable[[str], Any]) -> None:
        self._first = addresses[0]
        self._open = open_channel
        self._lock = threading.Lock()
        self._channels: dict[str, Any] | None = {}
        self._made_in = OwnProcess("client")

    def unary_unary(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._method("unary_unary", arguments, given)

    def unary_stream(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._method("unary_stream", arguments, given)

    def drain(self) -> list[Any]:
        """Return the channels, to be closed; no other is opened from now on."""
        self._leave_behind()
        with self._lock:
            channels, self._channels = self._channels or {}, None
        return list(channels.values())

    def _method(self, kind: str, arguments: tuple[Any, ...], given: dict[str, Any]) -> Callable[..., Any]:
        made: dict[tuple[int, str], Any] = {}

        def call(request: Any, *, endpoint: str = "", **how: Any) -> Any:
            address = endpoint or self._first
            key = (os.getpid(), address)
            method = made.get(key)
            if method is None:
                method = made[key] = getattr(self._channel(address), kind)(*arguments, **given)
            return method(request, **how)

        return call

    def _channel(self, address: str) -> Any:
        self._leave_behind()
        with self._lock:
            if self._channels is None:
                raise ValueError("the channel is closed")  # as gRPC's own
            if address not in self._channels:
                self._channels[address] = self._open(address)
            return self._channels[address]

    def _leave_behind(self) -> None:
        """Begin without channels in a fork, and with a lock that no thread of another process holds."""
        if self._made_in.is_this:
            return
        if self._channels is not None:
            _OF_FORMER_PROCESSES.append(self._channels)
            self._channels = {}
        self._lock, self._made_in = threading.Lock(), OwnProcess("client")
