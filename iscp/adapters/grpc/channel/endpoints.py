"""The nodes that a client may call, and which of them it calls next."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

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


class EndpointChannel:
    """The part of the channels to several nodes, of threads or of asyncio, that clients use: each call names its node.

    A channel is opened when its node is called first.
    """

    def __init__(self, addresses: tuple[str, ...], open_channel: Callable[[str], Any]) -> None:
        self._first = addresses[0]
        self._open = open_channel
        self._lock = threading.Lock()
        self._channels: dict[str, Any] | None = {}

    def unary_unary(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._method("unary_unary", arguments, given)

    def unary_stream(self, *arguments: Any, **given: Any) -> Callable[..., Any]:
        return self._method("unary_stream", arguments, given)

    def drain(self) -> list[Any]:
        """Return the channels, to be closed; no other is opened from now on."""
        with self._lock:
            channels, self._channels = self._channels or {}, None
        return list(channels.values())

    def _method(self, kind: str, arguments: tuple[Any, ...], given: dict[str, Any]) -> Callable[..., Any]:
        made: dict[str, Any] = {}

        def call(request: Any, *, endpoint: str = "", **how: Any) -> Any:
            address = endpoint or self._first
            method = made.get(address)
            if method is None:
                method = made[address] = getattr(self._channel(address), kind)(*arguments, **given)
            return method(request, **how)

        return call

    def _channel(self, address: str) -> Any:
        with self._lock:
            if self._channels is None:
                raise ValueError("the channel is closed")  # as gRPC's own
            if address not in self._channels:
                self._channels[address] = self._open(address)
            return self._channels[address]
