"""Who is registered, as an owner has it: the latest of the snapshots that come to it, by whatever way."""

from __future__ import annotations

from math import inf

from iscp.core.cluster import Moment, NodeRecord


class Roll:
    """`members` as of `moment`."""

    def __init__(self) -> None:
        self.members: tuple[NodeRecord, ...] = ()
        self.moment = Moment()
        self._hold_until_s = -inf

    def overtaken(self, moment: Moment) -> bool:
        """Whether a snapshot is older than what is known: nodes that have come since would seem to be gone."""
        return moment < self.moment

    def take(
        self, members: tuple[NodeRecord, ...], moment: Moment, now_s: float, margin_s: float, ttl_s: float
    ) -> float:
        """For how many seconds nothing may be placed, now that these are the members.

        A store that was restored from a backup knows nothing of leases since then, whose nodes may still write: for as
        long as the longest lease of anybody who was or is a member, `ttl_s` at the least, and `margin_s`.
        """
        if moment.restores > self.moment.restores:
            ttls_s = (record.ttl_s for record in (*self.members, *members))
            self._hold_until_s = now_s + max(ttl_s, max(ttls_s, default=0.0)) + margin_s
        self.members, self.moment = members, moment
        return max(0.0, self._hold_until_s - now_s)
