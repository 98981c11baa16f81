"""What the lease, the election and the registration promise, each dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iscp.etcd.keys import WatchEvent, snapshot_of
from iscp.etcd.member_keys import MemberReads, Members
from iscp.etcd.watch import apply_events
from iscp.model.values.ids import Moment, NodeRecord
from tests.simulation.election import Candidacy
from tests.simulation.etcd import Etcd
from tests.simulation.lease import Lease
from tests.simulation.registration import Registration


class GoesByIdsAndRevisions(MemberReads):
    """A restored etcd that has come past its former revisions goes unnoticed."""

    def _forgot(self, life: NodeRecord, there: Mapping[str, NodeRecord]) -> bool:
        return False


class FollowsAlone(MemberReads):
    """A watch brings what it knows by itself, be it older than what a list has shown meanwhile."""

    def list(self) -> Members:
        found, moment = super().list()
        self.__dict__.setdefault("lists", {})[moment] = dict(self._known)
        return found, moment

    def follow(self, events: Sequence[WatchEvent], since: Moment) -> Members | None:
        if self.moments.latest.restores > since.restores:
            return None
        known = self.__dict__["lists"][since]
        revision = apply_events(known, events)
        return snapshot_of(known.values()), self.moments.follow(since, revision)


class CountsFromReceipt(Lease):
    """A renewal holds from when its answer came."""

    def until_s(self, sent_s: float, received_s: float) -> float:
        return received_s + self.ttl_s - self.margin_s


class NoMargin(Lease):
    def until_s(self, sent_s: float, received_s: float) -> float:
        return sent_s + self.ttl_s


class LooksNotAgain(Candidacy):
    """Elected as soon as nobody is before it, as by etcd's own Campaign."""

    def still_there(self, revisions: list[int]) -> bool:
        return True


class KeepsItsEpoch(Registration):
    """A node that registers again does so as the life before."""

    def next_epoch(self, etcd: Etcd) -> int:
        return 1

    def known_epoch(self, etcd: Etcd) -> int:
        return 0
