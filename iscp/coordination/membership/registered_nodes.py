"""The registered nodes, as an owner knows them: the latest of the snapshots that it gets, by whatever way."""

from __future__ import annotations

from math import inf

from iscp.core.values.members import Moment, NodeRecord


class Roll:
    """The roll has the `members` as of `moment`."""

    def __init__(self) -> None:
        self.members: tuple[NodeRecord, ...] = ()
        self.moment = Moment()
        self._hold_until_s = -inf
        self._gone_at_s = -inf

    def overtaken(self, moment: Moment) -> bool:
        """Return whether a snapshot is older than what is known: nodes that have come since would seem to be gone."""
        return moment < self.moment

    def take(
        self,
        members: tuple[NodeRecord, ...],
        moment: Moment,
        now_s: float,
        margin_s: float,
        ttl_s: float,
        begins: bool = False,
    ) -> float:
        """Take the members, and return for how many seconds nothing may be placed.

        A store that was restored from a backup knows nothing of leases since then, whose nodes may still write: for as
        long as the longest lease of anybody who was or is a member, `ttl_s` at the least, and `margin_s`.

        An owner that `begins` after another waits for `margin_s` since a lease has ended, as one would have that was
        there: it cannot know what that node ran. Nor does it know whose lease had ended right before it first read
        them, or before it read them again after it had lost sight of the store.
        """
        if moment.restores > self.moment.restores:
            ttls_s = (record.ttl_s for record in (*self.members, *members))
            self._hold_until_s = now_s + max(ttl_s, max(ttls_s, default=0.0)) + margin_s
        unseen = self.moment == Moment() or moment.breaks > self.moment.breaks
        if unseen or self._misses_somebody(members):
            self._gone_at_s = now_s
        self.members, self.moment = members, moment
        hold_until_s = max(self._hold_until_s, self._gone_at_s + margin_s if begins else -inf)
        return max(0.0, hold_until_s - now_s)

    def _misses_somebody(self, members: tuple[NodeRecord, ...]) -> bool:
        """Return whether somebody is gone who did not leave in order; a node that left in order has handed over its
        shards.
        """
        there = {(record.node_id, record.epoch) for record in members}
        return any((each.node_id, each.epoch) not in there and not each.leaving for each in self.members)
