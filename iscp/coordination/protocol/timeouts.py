"""The times that the protocol waits; all of them are configuration."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class CoordinationTimes:
    """Durations in seconds."""

    lease_ttl_s: float = 10.0
    """Seconds that a node's lease lasts without renewal; `etcd.lease_ttl_s` sets it."""

    margin_s: float = 2.0
    """A node writes until TTL - margin after it sent the last confirmed renewal; `etcd.margin_s` sets it."""

    sync_deadline_s: float = 10.0
    """Seconds that a node may leave an Announce or a dispatch unanswered, or stay silent; then its lease is revoked."""

    operation_deadline_s: float = 120.0
    """Seconds that a shard may take to start or to stop; then its node's lease is revoked."""

    settle_s: float = 0.5
    """Seconds for which changes of membership are gathered before shards are placed."""

    rebalance_after_s: float = 5.0
    """Seconds that the nodes have to stay the same before shards are rebalanced to their preferred nodes."""

    resend_s: float = 1.0
    """Pause before what was not confirmed is sent again; it doubles up to `resend_max_s`, four times as long."""

    checkpoint_s: float = 0.02
    """Seconds for which reports are gathered before they travel together."""

    alive_s: float = 2.0
    """Seconds between a node's reports that it is there (inf: never)."""

    @property
    def alone_s(self) -> float:
        """Return for how many seconds an owner may hear of none of several nodes before it resigns: less than it waits
        for each.
        """
        return 0.8 * self.sync_deadline_s

    @property
    def resend_max_s(self) -> float:
        """Return the most seconds between two repetitions, which become ever rarer up to this."""
        return 4 * self.resend_s

    def next_resend_s(self, waited_s: float) -> float:
        """Return how many seconds to wait before the next repetition, after one that was waited for so long.

        A receiver with much to take in would only get more of it from repetitions at a fixed pace.
        """
        return min(2 * waited_s, self.resend_max_s)

    def __post_init__(self) -> None:
        if not 0 < self.margin_s < self.lease_ttl_s:
            raise ValueError("margin_s must lie between 0 and lease_ttl_s")
        if not 0 < self.resend_s < self.sync_deadline_s <= self.operation_deadline_s:
            raise ValueError("0 < resend_s < sync_deadline_s <= operation_deadline_s must hold")
        if 2 * self.alive_s > self.sync_deadline_s and self.alive_s < inf:
            raise ValueError("alive_s must be at most half of sync_deadline_s, or inf")
        if self.settle_s < 0 or self.rebalance_after_s < 0 or self.checkpoint_s < 0:
            raise ValueError("settle_s, rebalance_after_s and checkpoint_s must not be negative")
