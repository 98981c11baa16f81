"""The connections to a port that give way to new ones. Knows no clock, and closes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from iscp.adapters.system.open_connections import Peer

CROWDED_RATIO = 0.75
"""Part of the places for connections from which on those without a call are closed, the longest idle first."""

HOST_RATIO = 0.25
"""Part of the places for connections that one address has; where it has more, those without a call are closed."""

IDLE_LEAST_S = 1.0
"""How long a connection may be without a call, however many there are."""


class ConnectionPlaces:
    """`most`: how many connections there are room for. Times are of any clock that does not go back."""

    def __init__(self, most: int) -> None:
        self._total_max = int(most * CROWDED_RATIO)
        self._host_max = max(1, int(most * HOST_RATIO))
        self._calls: Counter[Peer] = Counter()
        self._idle_since_s: dict[Peer, float] = {}

    @property
    def unobserved_max(self) -> int:
        """Return up to how many connections nobody has to give way, whoever they are."""
        return min(self._total_max, self._host_max)

    def begin_call(self, peer: Peer) -> None:
        self._calls[peer] += 1
        self._idle_since_s.pop(peer, None)

    def end_call(self, peer: Peer, now_s: float) -> None:
        self._calls[peer] -= 1
        if self._calls[peer] <= 0:
            del self._calls[peer]
            self._idle_since_s[peer] = now_s

    def surplus(self, there: Collection[Peer], now_s: float) -> list[Peer]:
        """Return which of the connections that are there are to be closed, the longest idle first."""
        since_s = self._idle_since_s
        self._idle_since_s = {peer: since_s.get(peer, now_s) for peer in there if peer not in self._calls}
        idle = sorted(self._idle_since_s.items(), key=lambda each: each[1])
        total, of_host = len(there), Counter(host for host, _ in there)
        found = []
        for peer, idle_s in idle:
            if now_s - idle_s < IDLE_LEAST_S:
                break
            if total > self._total_max or of_host[peer[0]] > self._host_max:
                found.append(peer)
                total -= 1
                of_host[peer[0]] -= 1
        return found
