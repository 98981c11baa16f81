"""The retention of sources is read of jobs that lag for long alone, and warns before history is gone.

Tables that a job holds are released when it is dropped, or registered again without that, and then alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from iscp.cluster.requests.job_views import JobViews
from iscp.cluster.requests.retention_watch import LAG_MIN_S, RetentionWatch
from iscp.engine.account_turns import ANYWHERE, PlaceGuard
from iscp.model.access.authorization import AccountRoots
from iscp.model.api.api_requests import RegisterRequest, ResyncRequest
from iscp.model.api.api_views import RISK_SHARE
from iscp.model.job.source_holds import holder_of
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import StorageError
from iscp.ports.source import TableDescription
from iscp.server.admin.admin_service import lagging_jobs
from tests.fakes.catalog import FakeCatalog
from tests.fakes.clock import FakeClock
from tests.fakes.desk import OTHER, TABLE, Desk, X, asked, spec
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until

DAY_S = 86_400.0


class RetainingCatalog(FakeCatalog):
    """A catalog whose tables have these properties; `read` are those that were described."""

    def __init__(self, properties: Mapping[str, str], fault: Exception | None = None) -> None:
        super().__init__(TABLE)
        self.properties, self.fault = properties, fault
        self.described = list[str]()

    def describe(self, table: str) -> TableDescription:
        self.described.append(table)
        if self.fault is not None:
            raise self.fault
        return replace(super().describe(table), configuration=self.properties)


def watched(desk: Desk, catalog: RetainingCatalog, lag_s: float, places: PlaceGuard = ANYWHERE) -> RetentionWatch:
    """Watch a job that has applied version 5 of 7, and lags by so much."""
    job = desk.running()
    desk.reach(job, 5)
    views = JobViews(desk.world.owner, desk.nodes, lambda name: FakeKind(), desk.world.clock)
    clock = FakeClock(desk.admin.status(X).applied_at_s + lag_s)
    lagging: Any = LaggingViews(views, lag_s)
    watch = RetentionWatch(lagging_jobs(desk.world.owner, lagging, clock), catalog, places, clock)
    watch.turn()
    return watch


class LaggingViews:
    """The views of jobs, all of which lag by so much."""

    def __init__(self, views: JobViews, lag_s: float) -> None:
        self._views = views
        self._lag_s = lag_s

    def of(self, rows: list[object]) -> list[object]:
        return [replace(each, lag_s=self._lag_s) for each in self._views.of(rows)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("properties", "retained_s"),
    [
        ({}, 7 * DAY_S),
        ({"delta.deletedFileRetentionDuration": "interval 2 days"}, 2 * DAY_S),
        ({"delta.logRetentionDuration": "interval 1 day"}, DAY_S),
        ({"delta.deletedFileRetentionDuration": "interval 0 hours"}, 1.0),
        ({"delta.deletedFileRetentionDuration": "interval 3 months"}, 0.0),
    ],
)
def test_what_its_source_retains_is_known_of_a_job_that_lags(
    desk: Desk, properties: Mapping[str, str], retained_s: float
) -> None:
    watch = watched(desk, RetainingCatalog(properties), LAG_MIN_S)
    assert watch.retained_s(desk.row()) == retained_s


def test_of_a_job_that_hardly_lags_nothing_is_read(desk: Desk) -> None:
    catalog = RetainingCatalog({})
    assert watched(desk, catalog, LAG_MIN_S - 1).retained_s(desk.row()) == 0.0
    assert catalog.described == []


def test_a_table_that_cannot_be_read_or_is_not_the_accounts_is_not_known(desk: Desk) -> None:
    failing = RetainingCatalog({}, StorageError("it does not answer"))
    assert watched(desk, failing, DAY_S).retained_s(desk.row()) == 0.0
    catalog = RetainingCatalog({})
    roots = AccountRoots({desk.row().key.account: ("/elsewhere",)})
    guard = PlaceGuard(roots, lambda place: (place,), lambda root: root)
    assert watched(desk, catalog, DAY_S, guard).retained_s(desk.row()) == 0.0
    assert catalog.described == []


def test_a_node_that_is_the_owner_no_more_knows_nothing(desk: Desk) -> None:
    watch = watched(desk, RetainingCatalog({}), DAY_S)
    desk.world.owner.on_lost()
    until(lambda: desk.world.owner.writer is None)
    watch.turn()
    assert watch.retained_s(desk.world.storage.entries[-1][0]) == 0.0


def test_jobs_are_shown_with_it(desk: Desk) -> None:
    job = desk.running()
    desk.reach(job, 5)
    views = JobViews(
        desk.world.owner,
        desk.nodes,
        lambda name: FakeKind(),
        desk.world.clock,
        retained_s=lambda row: 9.0,
    )
    (view,) = views.of([desk.row()])
    assert view.retained_s == 9.0
    assert replace(view, lag_s=9.0 * RISK_SHARE + 1).may_lose_history
    assert not replace(view, lag_s=9.0 * RISK_SHARE).may_lose_history
    assert not replace(view, lag_s=1e9, retained_s=0.0).may_lose_history


BOTH = [TABLE.uri, OTHER.uri]


class HoldingKind(FakeKind):
    """Holds what its option says."""

    def held(self, spec: ConsumerSpec) -> Mapping[str, float]:
        return dict.fromkeys(spec.options.get("held", ()), 60.0)


def holding(desk: Desk, held: list[str]) -> str:
    """A job that does; how its sources name it."""
    desk.kind = HoldingKind()
    desk.admin.register([RegisterRequest(X, spec(options={"held": held}))])
    until(desk.world.runs)
    return holder_of(desk.row().key)


def test_a_job_that_is_dropped_holds_nothing_any_more(desk: Desk) -> None:
    holder = holding(desk, BOTH)
    for kept in ("pause", "resume"):
        asked(desk, kept, X)
    assert desk.holds.released == []
    assert asked(desk, "unregister", X)
    assert desk.holds.released == [(uri, holder) for uri in sorted(BOTH)]
    asked(desk, "unregister", X)
    assert len(desk.holds.released) == len(BOTH)


def test_a_resync_lets_go_of_what_the_job_holds_no_longer(desk: Desk) -> None:
    holder = holding(desk, BOTH)
    desk.admin.resync(ResyncRequest(X))
    assert desk.holds.released == []
    desk.admin.resync(ResyncRequest(X, spec_json=spec(options={"held": [OTHER.uri]})))
    assert desk.holds.released == [(TABLE.uri, holder)]


def test_a_table_that_cannot_be_reached_keeps_no_job_from_being_dropped(desk: Desk) -> None:
    desk.holds.refusals[OTHER.uri] = StorageError("is not there")
    holder = holding(desk, BOTH)
    assert asked(desk, "unregister", X)
    assert desk.holds.released == [(TABLE.uri, holder)]
