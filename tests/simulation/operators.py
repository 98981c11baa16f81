"""What operators and users do: they call whoever is the owner, and repeat no call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from iscp.cluster.jobs.job_changes import Pause, Register, Reshard, Resume, Resync, Unregister, Update
from iscp.model.build.build_state import MergeRange, Prioritize, SplitRange
from iscp.model.build.build_task import depth
from iscp.model.job.job_row import JobRow, Registration
from iscp.model.protocol.events import MoveRequested, RebalanceRequested
from iscp.model.rows.key_ranges import parent
from iscp.model.values.ids import JobKey, ShardId
from iscp.model.values.ring import Overrides
from tests.simulation.builds.building import state_of
from tests.simulation.specs import spec_json
from tests.simulation.trouble import Wish

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

RANGES = 4
"""A table that has so many is not split further."""

DEPTH_OF_BUILDS_MAX = 6
"""Ranges of builds that were cut so often are not cut further."""

ONE_RANGE = 0.6

JOBS = (("default", "j"), ("default", "k"), ("other", "x"))
"""Accounts and names: those of one account may share iterations."""


class Operators:
    def __init__(self, world: World) -> None:
        self._world = world
        self._last_ids: dict[str, str] = {}

    def wish(self, wish: Wish) -> None:
        """Something of this kind, of some node, table and job."""
        owner = self._world.an_owner()
        if owner is None:
            return
        random = self._world.random
        node_id = random.choice(self._world.node_ids)
        account, name = random.choice(JOBS[: 2 if self._world.trouble.accounts == 1 else None])
        key = JobKey(account, random.choice(self._world.tables), name)
        shard = ShardId(key.table_id)
        if self._world.sharded and owner.owner.leads:
            shard = ShardId(key.table_id, self._world.aside.choice(owner.owner.ranges(key.table_id)))
        self._world.note("operators", f"{wish} {key.table_id}.{key.job_name} {node_id} at {owner.node_id}")
        match wish:
            case Wish.REGISTER:
                self.register(owner, key)
            case Wish.UNREGISTER:
                owner.owner.submit(Unregister(key))
            case Wish.UPDATE:
                owner.owner.submit(Update(key, f'{{"iteration":{{"priority":{random.randint(0, 9)}}}}}'))
            case Wish.PAUSE:
                owner.owner.submit(Pause(key))
            case Wish.RESUME:
                owner.owner.submit(Resume(key))
            case Wish.RESYNC:
                self.resync(owner, key)
            case Wish.SPLIT | Wish.MERGE:
                self.reshard(owner, shard, merge=wish is Wish.MERGE)
            case Wish.MOVE:
                owner.owner.ask(MoveRequested(shard, node_id))
            case Wish.REBALANCE:
                owner.owner.ask(RebalanceRequested())
            case _:
                owner.owner.override(lambda now: changed(now, wish, node_id, shard))

    def resume_all(self, owner: Process) -> None:
        """A person looks after what is paused, failed for good or quarantined."""
        for row in owner.owner.rows if owner.owner.leads else ():
            if row.drop_at_s is None and (row.paused or row.failed_for_good):
                owner.owner.submit(Resume(row.key))

    def reshard(self, owner: Process, shard: ShardId, *, merge: bool) -> None:
        """As `iscp/server/admin/operator_service.py` requests it: of one range, or of all."""
        if not owner.owner.leads or (not merge and len(owner.owner.ranges(shard.table_id)) >= RANGES):
            return
        seen = frozenset(
            row.registration for row in owner.owner.rows if row.drop_at_s is None and row.key.table_id == shard.table_id
        )
        range_id = shard.range_id if self._world.happens(ONE_RANGE) else 0
        job_id = self.job_id(owner, owner.owner.last_job_id)
        owner.owner.submit(Reshard(shard.table_id, merge, range_id, seen, job_id))

    def steer(self, wish: Wish) -> None:
        """One of the ranges that are being built, or a table's turn."""
        random, owner = self._world.aside, self._world.an_owner()
        if owner is None:
            return
        self._world.note("operators", f"{wish} at {owner.node_id}")
        if wish is Wish.PRIORITIZE_BUILD:
            owner.building.ask(Prioritize(random.choice(self._world.tables), random.randint(0, 2)))
        elif tasks := list(state_of(self._world.etcd).live.values()):
            task = random.choice(tasks)
            if wish is Wish.MERGE_BUILD:
                owner.building.ask(MergeRange(task.table_id, parent(task.range_id)))
            elif depth(task.range_id) < DEPTH_OF_BUILDS_MAX:
                owner.building.ask(SplitRange(task.table_id, task.range_id))

    def resync(self, owner: Process, key: JobKey) -> None:
        if owner.owner.leads and (seen := owner.owner.job(key)) is not None:
            job_id = self.job_id(owner, owner.owner.last_job_id)
            row = JobRow(key, job_id, seen.spec_json, key.table_id, f"/{key.table_id}", create_at_s=owner.wall_s)
            owner.owner.submit(Resync(seen, Registration(row, sharded=self._world.sharded)))

    def register(self, owner: Process, key: JobKey) -> None:
        """Under the next id by the owner's clock, which may step back."""
        if not owner.owner.leads:
            return
        row = JobRow(
            key, self.job_id(owner, owner.owner.last_job_id), self._spec(key), key.table_id, f"/{key.table_id}"
        )
        owner.owner.submit(
            Register((Registration(row._replace(create_at_s=owner.wall_s), sharded=self._world.sharded),))
        )

    def _spec(self, key: JobKey) -> str:
        return spec_json(key, further=self._world.further(key))

    def job_id(self, owner: Process, last: str) -> str:
        """As `iscp/cluster/requests/job_maker.py` draws it."""
        last = max(self._last_ids.get(owner.node_id, ""), last)
        self._last_ids[owner.node_id] = job_id = self._world.parts.job_id(owner.wall_s, last)
        return job_id


def changed(now: Overrides, wish: Wish, node_id: str, shard: ShardId) -> Overrides:
    match wish:
        case Wish.PIN:
            return replace(now, pins={**now.pins, shard: node_id})
        case Wish.UNPIN:
            return replace(now, pins={each: where for each, where in now.pins.items() if each != shard})
        case Wish.CORDON:
            return replace(now, cordoned=now.cordoned | {node_id})
        case Wish.DRAIN:
            return replace(now, draining=now.draining | {node_id})
        case _:
            return replace(now, cordoned=now.cordoned - {node_id}, draining=now.draining - {node_id})
