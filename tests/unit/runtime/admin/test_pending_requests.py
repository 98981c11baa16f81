"""What users are answered while the owner is overloaded, and the lag of jobs that are paused."""

from __future__ import annotations

import json

import pytest

from iscp.core.api.api_requests import ChangeVerb, JobChange, JobName, RegisterRequest
from iscp.core.values.errors import Unavailable
from iscp.ports.catalog import TableDescription
from iscp.runtime.owner.job_progress import ProgressSignal
from tests.fakes.catalog import FakeCatalog
from tests.fakes.nodes import nodes_and_views
from tests.fakes.owner import OwnerWorld
from tests.fakes.owner_admin import owner_admin
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until

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
