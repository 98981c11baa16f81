"""Jobs that an owner in a test registers, and the rows that are its."""

from __future__ import annotations

from iscp.cluster.jobs.job_changes import Register
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow, Registration
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey, ShardId
from tests.fakes.owner import OwnerWorld
from tests.fakes.waiting import until

SHARD = ShardId("t-1")


def row(name: str, table_id: str = "t-1", job_id: str = "") -> JobRow:
    spec = JobSpec(ConsumerSpec("replica", f"/targets/{table_id}/{name}", ("id",)))
    key = JobKey("a", table_id, name)
    return JobRow(key, job_id or f"id-{name}", spec.to_json(), table_id, f"/tables/{table_id}")


def entry(name: str, seq: int = 1) -> HistoryEntry:
    return HistoryEntry("a", "t-1", name, f"id-{name}", seq, 0, 1, 1.0, 2.0, 1.0, 0, "", 1, 1, "tail", "n-1")


def register(world: OwnerWorld, *rows: JobRow) -> None:
    """Answered, and run by the node."""
    world.owner.current_writer().submit(Register(tuple(Registration(each) for each in rows))).result(10)
    until(lambda: all(world.runs(each.key.table_id) for each in rows))
