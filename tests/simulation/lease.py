"""A lease kept alive by its node. Stands for `iscp/etcd/member_keys.py`, whose thread is here a timer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.process import Process

RENEWALS_PER_TTL = 3
RETRIES_PER_TTL = 10


class Lease:
    """`on_lapsed` is called each time when it can no longer be confirmed; `gone`: the server has said so."""

    def __init__(
        self, process: Process, granted: tuple[int, float], sent_s: float, on_lapsed: Callable[[], None]
    ) -> None:
        self._process = process
        self._on_lapsed = on_lapsed
        self.lease_id, self.ttl_s = granted
        self.margin_s = process.world.parts.times.margin_s
        self.gone = self.closed = self._lapsed = False
        self.confirmed_until_s = self.until_s(sent_s, process.now_s)
        self._wait(self.ttl_s / RENEWALS_PER_TTL)

    def until_s(self, sent_s: float, _received_s: float) -> float:
        """Until when a renewal holds, by the node's own clock."""
        return sent_s + self.ttl_s - self.margin_s

    @property
    def valid(self) -> bool:
        return self._process.now_s < self.confirmed_until_s

    def close(self) -> None:
        """Renew it no more, and rely on it no more."""
        self.closed, self.confirmed_until_s = True, -math.inf

    def _wait(self, wait_s: float) -> None:
        self._process.after(wait_s, self._renew)

    def _renew(self) -> None:
        if self.closed or self.gone:
            return
        sent_s, lease_id = self._process.now_s, self.lease_id
        self._process.etcd.call(
            lambda etcd: etcd.keep_alive(lease_id), lambda ttl_s: self._answered(sent_s, ttl_s), self._unanswered
        )

    def _answered(self, sent_s: float, ttl_s: float) -> None:
        if self.closed:
            return
        if ttl_s <= 0:
            self.gone, self.confirmed_until_s = True, -math.inf
            self._look()
            return
        self.confirmed_until_s = self.until_s(sent_s, self._process.now_s)
        self._lapsed = self._lapsed and not self.valid
        self._process.world.checks.lease_confirmed(self._process)
        self._go_on(self.ttl_s / RENEWALS_PER_TTL)

    def _unanswered(self) -> None:
        if not self.closed:
            self._go_on(self.ttl_s / RETRIES_PER_TTL)

    def _go_on(self, wait_s: float) -> None:
        self._look()
        if not self._lapsed:
            wait_s = min(wait_s, max(0.0, self.confirmed_until_s - self._process.now_s))
        self._wait(wait_s)

    def _look(self) -> None:
        if not self._lapsed and not self.valid:
            self._lapsed = True
            self._on_lapsed()
