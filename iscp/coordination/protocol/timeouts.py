"""How long the protocol waits for what; all of it is configuration."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class CoordinationTimes:
    """Durations in seconds.

    `ttl_s` and `margin_s` are the node leases': a node writes only until TTL - margin after it sent the last
    confirmed renewal. `sync_deadline_s`: how long a node may leave an Announce or a dispatch without any answer;
    `operation_deadline_s`: how long a shard may take to start or to stop. A node that misses one of them has its
    lease revoked. `settle_s`: membership changes within it are taken together; `rebalance_after_s`: shards are brought
    home when the nodes have stayed the same for so long. `alive_s`: how often a node says that it is
    there (inf: never); one that is not heard of for `sync_deadline_s` is revoked too. `resend_s`: after how long what
    was not confirmed is sent again. `checkpoint_s`: reports within it travel together.
    """

    ttl_s: float = 10.0
    margin_s: float = 2.0
    sync_deadline_s: float = 10.0
    operation_deadline_s: float = 120.0
    settle_s: float = 0.5
    rebalance_after_s: float = 5.0
    resend_s: float = 1.0
    checkpoint_s: float = 0.02
    alive_s: float = 2.0

    @property
    def resend_max_s(self) -> float:
        """What is repeated is repeated ever more rarely, up to this."""
        return 4 * self.resend_s

    def next_resend_s(self, waited_s: float) -> float:
        """How long to wait before the next repetition, after one that was waited for so long.

        Who has much to take in would only have more of it by what is repeated at a fixed pace.
        """
        return min(2 * waited_s, self.resend_max_s)

    def __post_init__(self) -> None:
        if not 0 < self.margin_s < self.ttl_s:
            raise ValueError("margin_s must lie between 0 and ttl_s")
        if not 0 < self.resend_s < self.sync_deadline_s <= self.operation_deadline_s:
            raise ValueError("0 < resend_s < sync_deadline_s <= operation_deadline_s must hold")
        if 2 * self.alive_s > self.sync_deadline_s and self.alive_s < inf:
            raise ValueError("alive_s must be at most half of sync_deadline_s, or inf")
        if self.settle_s < 0 or self.rebalance_after_s < 0 or self.checkpoint_s < 0:
            raise ValueError("settle_s, rebalance_after_s and checkpoint_s must not be negative")
