"""What the lease, the election and the registration promise, each dropped."""

from __future__ import annotations

from tests.simulation.election import Candidacy
from tests.simulation.etcd import Etcd
from tests.simulation.lease import Lease
from tests.simulation.registration import EPOCHS, Registration


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
    """A node that registers anew does so as the life before."""

    def next_epoch(self, etcd: Etcd) -> int:
        etcd.put(f"{EPOCHS}{self._process.node_id}", 1)
        return 1
