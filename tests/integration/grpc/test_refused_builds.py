"""What cannot be done with builds is refused with what is wrong, where, and what to do, and nothing is changed.

From the client to what the owner knows, over a real socket; only the builder behind it is a fake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from iscp.client.admin_client import Client
from iscp.model.api.api_requests import ChangeOutcome, JobChange
from iscp.model.build.build_progress import BuildStage, JobBuild, KnownBuilds
from iscp.model.build.build_task import BuildPlan, BuildTask, TaskType
from iscp.model.values.errors import InvalidRequest, IscpError, JobNotFound, TableNotFound
from iscp.model.values.progress import SnapshotSize, TableSize
from iscp.server.admin.admin_server import AdminServer, BuildServer
from iscp.server.admin.operator_service import OwnerBuilds
from tests.fakes.admin import FakeAdmin
from tests.fakes.catalog import FakeCatalog
from tests.fakes.owned_jobs import register, row
from tests.fakes.owner import OwnerWorld
from tests.fakes.shown_builds import FakeTermBuilds

DEEPEST = 1 << 16


def build(name: str, table_id: str, stage: BuildStage, *ranges: int, pieces: int) -> JobBuild:
    size = SnapshotSize(1_000, 8_000, pieces)
    plan = BuildPlan(f"id-{name}", "a", table_id, name, f"/tables/{table_id}", 7, "{}", 0, 2, size)
    tasks = (
        BuildTask(f"{name}-{each}", TaskType.BUILD_RANGE, False, table_id, plan.job_id, each, "n-1") for each in ranges
    )
    return JobBuild(plan, stage, tuple(tasks), {"n-1": TableSize(100, 800)})


BUILDS = (
    build("few", "orders", BuildStage.BUILDING, 4, 6, 7, pieces=7),
    build("deep", "flights", BuildStage.BUILDING, DEEPEST, pieces=10**6),
    build("staged", "planes", BuildStage.PUBLISHING, pieces=4),
)


@dataclass
class Served:
    client: Client
    builder: FakeTermBuilds
    paused: list[JobChange]


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """An owner of jobs on four tables, of which one, `idle` on pilots, is not being built."""
    world = OwnerWorld()
    world.lead()
    register(world, row("idle", "pilots"), *(row(each.plan.job_name, each.plan.table_id) for each in BUILDS))
    builder, paused = FakeTermBuilds(KnownBuilds(BUILDS)), list[JobChange]()

    def pause(changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        paused.extend(changes)
        return [True for _ in changes]

    service = BuildServer(OwnerBuilds(world.owner, FakeCatalog(), builder, pause, world.clock))
    server = AdminServer(FakeAdmin(), "127.0.0.1:0", services=[service])
    server.start()
    with Client(server.address) as client:
        yield Served(client, builder, paused)
    server.stop(grace_s=0)
    world.close()


Call = Callable[[Client], object]


@pytest.mark.parametrize(
    ("call", "kind", "field", "message", "remedy"),
    [
        (
            lambda client: client.builds.split("orders"),
            *(InvalidRequest, "range", "the snapshot has 7 pieces", "only ranges below 4 can be split"),
        ),
        (
            lambda client: client.builds.split("orders", range_id=6),
            *(InvalidRequest, "range", "there would be 8 ranges of that size", "only ranges below 4 can be split"),
        ),
        (
            lambda client: client.builds.split("orders", range_id=5),
            *(InvalidRequest, "range", "5 is none of the ranges that are still to be built", "build status"),
        ),
        (
            lambda client: client.builds.split("flights", range_id=DEEPEST),
            *(InvalidRequest, "range", "was cut 16 times", "Split another range"),
        ),
        (
            lambda client: client.builds.split("planes"),
            *(InvalidRequest, "range", "nothing of it is left to be built", "build status"),
        ),
        (
            lambda client: client.builds.merge("orders", range_id=4),
            *(InvalidRequest, "range", "4 has no other half: 5 is built already", "merge its parts first"),
        ),
        (
            lambda client: client.builds.merge("orders", range_id=1),
            *(InvalidRequest, "range", "1 is none of the ranges", "build status"),
        ),
        (
            lambda client: client.builds.merge("flights"),
            *(InvalidRequest, "range", "no two halves", "build status"),
        ),
        (
            lambda client: client.builds.merge("planes", range_id=2),
            *(InvalidRequest, "range", "nothing of it is left to be built", "build status"),
        ),
        (
            lambda client: client.builds.abort("planes", "staged", account="a"),
            *(InvalidRequest, "job", "is staged as a whole, and about to be published", "job pause"),
        ),
        (
            lambda client: client.builds.abort("planes"),
            *(InvalidRequest, "table", "is staged as a whole, and about to be published", "job pause"),
        ),
        (
            lambda client: client.builds.abort("pilots", "idle", account="a"),
            *(InvalidRequest, "job", "job 'idle' on pilots is not being built", "build list"),
        ),
        (
            lambda client: client.builds.abort("orders", "unknown", account="a"),
            *(JobNotFound, "job", "no job 'unknown'", ""),
        ),
        (
            lambda client: client.builds.prioritize("pilots"),
            *(InvalidRequest, "table", "pilots is not being built", "build list"),
        ),
        *(
            (call, TableNotFound, "table", "nowhere", "")
            for call in (
                lambda client: client.builds.list("nowhere"),
                lambda client: client.builds.abort("nowhere"),
                lambda client: client.builds.prioritize("nowhere"),
                lambda client: client.builds.split("nowhere"),
                lambda client: client.builds.merge("nowhere", range_id=4),
            )
        ),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_changed(
    served: Served, call: Call, kind: type[IscpError], field: str, message: str, remedy: str
) -> None:
    with pytest.raises(kind) as refused:
        call(served.client)
    assert message in refused.value.message
    assert (refused.value.field, bool(refused.value.remedy)) == (field, True)
    assert remedy in refused.value.remedy
    assert (served.builder.changes, served.paused) == ([], [])
