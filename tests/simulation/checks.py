"""Safety: what is looked at whenever something happens that could break it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from iscp.core.ids import JobKey, ShardId, TableEpoch
from iscp.core.job import JobRow
from tests.simulation.violation import expect

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World


class Checks:
    """No shard is started, or kept by a renewal, where another process that may write has it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._newest: dict[ShardId, TableEpoch] = {}

    def started(self, process: Process, shard: ShardId, table_epoch: TableEpoch) -> None:
        if not process.registration.confirmed:
            return  # it will commit nothing
        self._alone(process, shard)
        newest = self._newest.get(shard)
        expect(newest is None or table_epoch > newest, "{} is started under {} after {}", shard, table_epoch, newest)
        self._newest[shard] = table_epoch

    def lease_confirmed(self, process: Process) -> None:
        engine = process.engine
        if process.registration.confirmed:
            for shard in engine.shards - engine.condemned:
                self._alone(process, shard)

    def _alone(self, process: Process, shard: ShardId) -> None:
        for other in self._world.processes.values():
            if other is process or not other.registration.confirmed:
                continue
            if shard in other.engine.shards and shard not in other.engine.condemned:
                expect(False, "{} runs at {} and at {}, and both may write", shard, process.node_id, other.node_id)

    def one_row_a_job(self, rows: Iterable[JobRow]) -> None:
        wanted: set[JobKey] = set()
        for row in rows:
            if row.drop_at_s is None:
                expect(row.key not in wanted, "{} is registered twice", row.key)
                wanted.add(row.key)
