"""A job's id is later than any that its target may bear, whatever happens while its request is checked.

What users are answered while the owner is overloaded, and the lag of jobs that are paused.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.model.api.api_requests import ChangeVerb, JobChange, JobName, RegisterRequest, ResyncRequest
from iscp.model.job.registration_id import parse_job_id, spec_mark
from iscp.model.values.errors import Unavailable
from iscp.ports.source import TableDescription
from iscp.server.admin.admin_service import OwnerAdmin
from tests.fakes.catalog import FakeCatalog
from tests.fakes.nodes import nodes_and_views
from tests.fakes.owner import OwnerWorld
from tests.fakes.owner_admin import owner_admin
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until

FAST = TableDescription("t-1", "fast", "/tables/fast", 7, 1.0, {"id": "long"})
SLOW = TableDescription("t-2", "slow", "/tables/slow", 7, 1.0, {"id": "long"})


def request(name: str, table: TableDescription, target: str) -> RegisterRequest:
    spec = {"iteration": {"consumer": {"kind": "replica", "target": target}}}
    return RegisterRequest(JobName(table.uri, name), json.dumps(spec))


class SlowCatalog(FakeCatalog):
    """`meanwhile` happens while the slow table is described."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def describe(self, table: str) -> TableDescription:
        if table == SLOW.uri:
            self.meanwhile()
        return super().describe(table)


def admin_of(world: OwnerWorld, catalog: SlowCatalog) -> OwnerAdmin:
    world.lead()
    nodes, views = nodes_and_views(world.owner, world.membership, world.clock)
    return owner_admin(world.owner, catalog, lambda name: FakeKind(), world.clock, nodes, views.view)


def test_a_registration_that_came_and_went_while_another_was_checked_has_the_earlier_id() -> None:
    world, catalog = OwnerWorld(), SlowCatalog(FAST, SLOW)
    admin = admin_of(world, catalog)
    passed: list[str] = []

    def come_and_go() -> None:
        passed.append(admin.register([request("short", FAST, "/targets/x")])[0].job_id)
        admin.change([JobChange(ChangeVerb.UNREGISTER, JobName(FAST.uri, "short"))])

    catalog.meanwhile = come_and_go
    first, second = admin.register([request("long", FAST, "/targets/x"), request("other", SLOW, "/targets/y")])
    assert passed[0] < first.job_id < second.job_id
    world.close()


def test_a_resync_that_another_overtook_while_it_was_checked_is_decided_again_under_a_later_id() -> None:
    world, catalog = OwnerWorld(), SlowCatalog(SLOW)
    admin = admin_of(world, catalog)
    admin.register([request("x", SLOW, "/targets/x")])
    job = JobName(SLOW.uri, "x")
    overtaking: list[str] = []

    def overtake() -> None:
        catalog.meanwhile = lambda: None
        overtaking.append(admin.resync(ResyncRequest(job)).job_id)

    catalog.meanwhile = overtake
    result = admin.resync(ResyncRequest(job))
    assert overtaking[0] < result.job_id == admin.status(job).job_id
    assert len(world.storage.entries) == 5
    world.close()


def test_an_id_has_the_mark_of_the_spec_as_the_job_log_stores_it_and_a_resync_is_to_build() -> None:
    world, catalog = OwnerWorld(), SlowCatalog(FAST)
    admin = admin_of(world, catalog)
    (created,) = admin.register([request("x", FAST, "/targets/x")])
    row = world.storage.entries[-1].row
    mark = spec_mark(row.table_uri, row.spec.consumer)
    assert parse_job_id(created.job_id)[1:] == (mark, False, False)
    resynced = admin.resync(ResyncRequest(JobName(FAST.uri, "x")))
    assert parse_job_id(resynced.job_id)[1:] == (mark, False, True)
    (other,) = admin.register([request("y", FAST, "/targets/y")])
    assert parse_job_id(other.job_id).mark != mark
    assert created.job_id < resynced.job_id < other.job_id
    world.close()


TABLE = TableDescription("t-1", "orders", "/tables/orders", 7, 1.0, {"id": "long"})
X = JobName(TABLE.uri, "x")


def test_an_owner_that_does_not_answer_in_time_is_a_fault_that_passes() -> None:
    owner = OwnerWorld().owner  # its thread is not started
    with pytest.raises(Unavailable):
        owner.query(lambda loop: None, timeout_s=0.01)


def test_the_lag_of_a_paused_job_grows_while_its_table_has_none() -> None:
    world, moved = OwnerWorld(), ProgressSignal()
    world.lead()
    nodes, views = nodes_and_views(world.owner, world.membership, world.clock)
    catalog = FakeCatalog(TABLE)
    admin = owner_admin(world.owner, catalog, lambda name: FakeKind(), world.clock, nodes, views.view, moved)
    spec = {"iteration": {"consumer": {"kind": "replica", "target": "/targets/x"}}}
    admin.register([RegisterRequest(X, json.dumps(spec))])
    until(world.runs)
    row = world.storage.entries[-1][0]
    world.report(row, 7)
    until(lambda: admin.status(X).applied_version == 7)
    applied_at_s = admin.status(X).applied_at_s
    admin.change([JobChange(ChangeVerb.PAUSE, X)])
    world.pass_s(3.0)
    world.see(9, lag_s=0.0)
    world.settle()
    assert admin.status(X).lag_s == world.clock.now_s() - applied_at_s >= 3.0
    world.close()
