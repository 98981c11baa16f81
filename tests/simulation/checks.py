"""Safety: what is checked whenever something happens that could break it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from iscp.cluster.membership.term import AWAITED_MIN
from iscp.cluster.owner.checkpoint_saver import Checkpointer, SeenSources
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.messages import DispatchTable
from iscp.model.rows import key_ranges
from iscp.model.values.ids import JobKey, ShardId, TableEpoch
from iscp.schedule.lag import CLOCKS_APART_S, lag_of, of_the_future
from tests.simulation.trouble import Fault
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World


DISPATCHES_MIN = 5
"""Dispatches of a shard under one table_epoch that may follow each other quickly."""


UNDER_WAY_S = 20.0
"""For how long a report may be under way; a lag is too low by as much where clocks do not agree."""

ROUNDED_S = 0.01


class Checks:
    """No shard is started, or kept by a renewal, where another process that may write has it.

    And no owner loads nodes, or blames them, for what it cannot keep up with itself.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._newest: dict[ShardId, TableEpoch] = {}
        self._starts: Counter[ShardId] = Counter()
        self._harmed = world.trouble.harms_nodes
        self._clocks_agree = Fault.STEP_CLOCK not in world.trouble.faults and not world.trouble.jumps
        ended = {Fault.DELETE_ELECTION_KEY, Fault.RESTORE_ETCD, Fault.SUSPEND}
        self._leases_ended = not ended.isdisjoint(world.trouble.faults)
        self._dispatched: dict[TableEpoch, tuple[float, int]] = {}
        # Of each term: when it was seen first, and its checkpoint.
        self._checkpoints: dict[int, tuple[float, float]] = {}

    def started(self, process: Process, shard: ShardId, table_epoch: TableEpoch, epoch: int) -> None:
        if not process.registration.confirms(epoch):
            return  # it will commit nothing
        self._alone(process, shard)
        self._starts[shard] += 1
        newest = self._newest.get(shard)
        expect(newest is None or table_epoch > newest, "{} is started under {} after {}", shard, table_epoch, newest)
        self._newest[shard] = table_epoch

    def each_started_once(self) -> None:
        """Nodes that come together are taken together."""
        for shard, times in self._starts.items():
            expect(times == 1, "{} was started {} times, though all nodes were there at once", shard, times)

    def lease_confirmed(self, process: Process) -> None:
        engine = process.engine
        if process.registration.confirmed:
            for shard in engine.writable:
                self._alone(process, shard)

    def _alone(self, process: Process, shard: ShardId) -> None:
        for other in self._world.processes.values():
            if other is process or not other.registration.confirmed:
                continue
            if any(overlap(shard, each) for each in other.engine.writable):
                expect(False, "{} runs at {} and at {}, and both may write", shard, process.node_id, other.node_id)

    @property
    def dispatches(self) -> int:
        """How many there were in all."""
        return sum(times for _, times in self._dispatched.values())

    def dispatched(self, message: DispatchTable, now_s: float) -> None:
        """What is not confirmed is sent ever more rarely; half as rarely is allowed, as owners stand still at times."""
        first_s, times = self._dispatched.get(message.table_epoch, (now_s, 0))
        self._dispatched[message.table_epoch] = first_s, times + 1
        most = DISPATCHES_MIN + 2 * (now_s - first_s) / self._world.parts.times.resend_max_s
        passed_s = now_s - first_s
        expect(times < most, "{} was dispatched {} times in {} s", message.shard, times + 1, passed_s)

    def revoked(self, node_id: str, why: str) -> None:
        """Who answers, and is not read, is not given up on."""
        expect(self._harmed, "{} is given up on ({}), and nothing is wrong with it", node_id, why)

    def read(self, node_id: str, term: int) -> None:
        """No owner answers of its book once a later one has changed it: by its lease, which etcd alone ends here."""
        if not self._leases_ended:
            newest = self._world.log.written_by
            expect(term >= newest, "{} answers by term {}, and term {} has written", node_id, term, newest)

    def answers_wait(self, count: int) -> None:
        """Two to each dispatch; those that came to have been read meanwhile may be doubled by those that follow."""
        trouble, span_s = self._world.trouble, self._world.parts.times.resend_s / 2
        if not self._harmed and not trouble.double and trouble.step_s:
            most = 4 * max(AWAITED_MIN, int(span_s / trouble.step_s))
            expect(count <= most, "{} answers wait to be read, more than {}", count, most)

    def checkpoint(self, checkpoint: Checkpointer, rows: Iterable[JobRow]) -> None:
        """Times of looks and of commits are of clocks, which agree but where one of them steps."""
        if self._clocks_agree:
            checkpoint.check(rows, self._world.applied_up_to_s)

    def ahead(self, node_id: str, term: int, at_s: float) -> None:
        """No owner moves the checkpoint into the future once its clock is wrong, if it was right when its term
        began."""
        now_s = self._world.agenda.now_s
        began_s, before_s = self._checkpoints.get(term, (now_s, at_s))
        self._checkpoints[term] = began_s, at_s
        if at_s > before_s and Fault.STEP_CLOCK not in self._world.trouble_drawn.faults:
            fair = self._world.wrongs.ahead_since_s[node_id] <= began_s
            expect(fair or not of_the_future(at_s, now_s), "the checkpoint goes on to {}, of {}", at_s, now_s)

    def lags(self, sources: SeenSources, rows: Iterable[JobRow], at_s: float) -> None:
        """No lag that is shown is below the truth; by how much, where clocks or machines stand still, is bounded."""
        trouble = self._world.trouble_drawn
        if trouble.poison:
            return  # nodes of others say what cannot be
        stands_s = UNDER_WAY_S if not self._clocks_agree or Fault.SUSPEND in trouble.faults else 0.0
        for row in (row for row in rows if row.watermark.version >= 0):
            seen, truth_s = sources.dated(row.key.shard), self._world.lag_s(row)
            lag, apart_s = lag_of(row, seen, at_s), 0.0
            if not self._clocks_agree and not (seen and seen.ages and seen.ages[0].version <= row.watermark.version):
                # No probe of the node was before that commit: its age is by clocks, and wrong by as much as they are.
                apart_s = max(CLOCKS_APART_S, self._world.agenda.now_s - at_s)
            least_s = truth_s * (1.0 - 2 * trouble.drift) - max(stands_s, apart_s) - ROUNDED_S
            expect(not lag.known or lag.most_s >= least_s, "{} lags by {}, and {} is shown", row.key, truth_s, lag)

    def one_row_a_job(self, rows: Iterable[JobRow]) -> None:
        wanted: set[JobKey] = set()
        for row in rows:
            if row.drop_at_s is None:
                expect(row.key not in wanted, "{} is registered twice", row.key)
                wanted.add(row.key)


def overlap(one: ShardId, other: ShardId) -> bool:
    """Whether they have keys in common."""
    return one.table_id == other.table_id and key_ranges.overlaps(one.range_id, other.range_id)
