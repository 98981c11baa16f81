"""The tables of the shards that run here are followed, each once, and a notice wakes all shards that read the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import StartShard, StopAllShards, StopShard, UpdateShard
from iscp.model.values.ids import ShardId, TableEpoch
from iscp.schedule.scheduler import TableNotices
from tests.fakes.timetable import job, specified

A, B = ShardId("a"), ShardId("b")
EPOCH = TableEpoch(1, 1)


@dataclass
class Kernel:
    on_commit: Callable[[str], None]
    followed: list[str] = field(default_factory=list)
    closed: bool = False

    def follow(self, table_uri: str) -> None:
        self.followed.append(table_uri)

    def leave(self, table_uri: str) -> None:
        self.followed.remove(table_uri)

    def close(self) -> None:
        self.closed = True

    def counters(self) -> dict[str, int]:
        return {"tables_noticed": len(self.followed)}


class World:
    def __init__(self) -> None:
        self.woken: list[ShardId] = []
        self.notices = TableNotices(self._kernel, self.woken.append)

    def _kernel(self, on_commit: Callable[[str], None]) -> Kernel:
        self.kernel = Kernel(on_commit)
        return self.kernel

    def start(self, shard: ShardId, *rows: JobRow) -> None:
        self.notices.give(StartShard(shard, EPOCH, rows))


@pytest.fixture
def world() -> World:
    return World()


def view(uri: str, *further: str) -> JobRow:
    options = {"tables": {f"t{number}": each for number, each in enumerate((uri, *further))}}
    consumer = {"kind": "view", "target": "/v", "options": options}
    return specified(job("v", uri=uri), iteration={"consumer": consumer})


def test_a_table_is_followed_as_long_as_a_shard_reads_it(world: World) -> None:
    world.start(A, job("x", uri="/a"), job("y", uri="/a"))
    world.start(B, view("/b", "/a"))
    assert sorted(world.kernel.followed) == ["/a", "/b"]
    world.notices.give(StopShard(A))
    assert sorted(world.kernel.followed) == ["/a", "/b"]
    world.notices.give(UpdateShard(B, EPOCH, (job("x", uri="/b"),)))
    assert world.kernel.followed == ["/b"]
    world.notices.give(StopAllShards())
    assert world.kernel.followed == []


def test_a_notice_wakes_whoever_reads_the_table(world: World) -> None:
    world.start(A, job("x", uri="/a"))
    world.start(B, view("/b", "/a"))
    world.kernel.on_commit("/a")
    assert sorted(world.woken, key=str) == [A, B]
    world.kernel.on_commit("/nobodys")
    world.notices.give(StopShard(B))
    world.kernel.on_commit("/b")
    assert len(world.woken) == 2


def test_the_jobs_that_are_dropped_need_no_table(world: World) -> None:
    world.start(A, job("x", uri="/a")._replace(drop_at_s=1.0))
    assert world.kernel.followed == []
    assert world.notices.counters() == {"tables_noticed": 0}
    world.notices.close()
    assert world.kernel.closed
