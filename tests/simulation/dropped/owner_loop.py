"""The fences and guards of the owner's loop, its revocations and its term's beginning, each dropped."""

from __future__ import annotations

from contextlib import suppress

from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.owner_loop import OwnerLoop, Revoker
from iscp.model.values.errors import IscpError, no_owner
from iscp.model.values.ids import Leader, NodeRecord, ShardId
from tests.simulation.owner_ports import OwnerMembership


class ClaimsBlindly(OwnerLoop):
    """Takes up its term whoever leads by then: then the nodes' look is all there is."""

    def _still_leads(self, leader: Leader) -> bool:
        super()._still_leads(leader)  # it takes its time all the same
        return True


class AnswersWithoutProof(OwnerLoop):
    """Reads are answered as long as nobody has heard that the election is lost."""

    def current_writer(self) -> LogWriter:
        if self.writer is None:
            raise no_owner()
        return self.writer


class ForgetsRevocations(OwnerMembership):
    """A new owner does not wait for nodes that the one before it revoked."""

    def _still_written_s(self, traces: dict[int, float]) -> float:
        return 0.0


class RevokesUnfenced(Revoker):
    """A deposed owner, which hears from nobody, revokes everybody."""

    def _revoke(self, record: NodeRecord, election_revision: int) -> None:
        with suppress(IscpError):
            self._membership.revoke(record, lambda key, value, lease_id: None)
        self._revoking.discard((record.node_id, record.epoch))


class NeverRests(OwnerLoop):
    """What was due in a term stays due after it."""

    def _next_due_s(self) -> float | None:
        saved_s, due_s = self.checkpoint.due_s, super()._next_due_s()
        return min((each for each in (saved_s, due_s) if each is not None), default=None)


class LosesWhatItTold(OwnerLoop):
    """What moved while a commit of another term was under way is looked up nowhere."""

    def _take_shards(self, writer: LogWriter, shards: dict[ShardId, bool]) -> None:
        super()._take_shards(writer, dict.fromkeys(shards, False))
