"""A job that reads several tables is fresh when it has come as far in each of them, and hears of commits of each."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from iscp.coordination.protocol.messages import FurtherSeen, VersionAge
from iscp.core.api.api_requests import RegisterRequest
from iscp.core.job.job_row import JobRow, JobState, JobStatus, Reason
from iscp.core.spec.spec import ConsumerSpec
from iscp.core.values.errors import InvalidRequest, TableNotFound, TimedOut
from iscp.core.values.ids import ShardId
from iscp.core.values.watermark import SourceMark, Watermark
from iscp.ports.catalog import Catalog
from tests.fakes.desk import OTHER, TABLE, Desk, Waiter, X, asked, spec
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until

SHARD = ShardId("t-1")


class SeveralKind(FakeKind):
    def tables(self, spec: ConsumerSpec, catalog: Catalog) -> Mapping[str, str]:
        return {name: catalog.normalize(uri) for name, uri in spec.options["tables"].items()}


def running(desk: Desk) -> JobRow:
    """A job on a table at version 7 that reads another, which is at version 3."""
    consumed = spec(options={"tables": {"orders": TABLE.uri, "items": OTHER.uri}})
    desk.admin.register([RegisterRequest(X, consumed)])
    until(desk.world.runs)
    return desk.row()


def status(own: int, other: int) -> JobStatus:
    read = {TABLE.uri: own, OTHER.uri: other}
    return JobStatus(sources={uri: SourceMark("id", Watermark(version, 1.0)) for uri, version in read.items()})


def test_a_wait_goes_on_while_another_table_is_ahead(desk: Desk) -> None:
    row = running(desk)
    waiter = Waiter(desk, None)
    assert waiter.waits()
    desk.world.report(row, 7, JobState.COMPLETED, Reason.NONE, status(7, 2))
    until(lambda: desk.admin.status(X).applied_version == 7)
    assert waiter.waits()
    with pytest.raises(TimedOut, match=f"version 3 of {OTHER.uri}"):
        desk.admin.wait(X, 7, 0.0, lambda: True)
    desk.world.report(row._replace(seq=row.seq + 2), 7, JobState.COMPLETED, Reason.NONE, status(7, 3))
    assert waiter.answer.result(10.0).status.sources == status(7, 3).sources


def test_a_job_lags_by_the_tables_that_it_has_not_read_and_not_as_others_of_its_shard_do(desk: Desk) -> None:
    row = running(desk)
    desk.reach(row, 7, JobState.COMPLETED, Reason.NONE, status(7, 2))
    others = (
        FurtherSeen(OTHER.uri, 3, 40.0, ages=(VersionAge(2, 40.0),)),
        FurtherSeen("/lake/of-another-view", 9, 90.0),
    )
    desk.world.see(7, 90.0, further=others)
    assert 40.0 <= desk.admin.status(X).lag_s < 90.0
    desk.world.report(row._replace(seq=row.seq + 2), 7, JobState.COMPLETED, Reason.NONE, status(7, 3))
    until(lambda: desk.admin.status(X).lag_s == 0.0)


def test_whoever_reads_a_table_is_notified_of_it_as_well(desk: Desk) -> None:
    running(desk)
    assert desk.admin.notify(TABLE.uri) == 1
    assert desk.admin.notify(OTHER.uri) == 1
    # Several hints are on their way to a node at once: they arrive in any order.
    until(lambda: sorted(desk.notified) == [(SHARD, False), (SHARD, True)])
    asked(desk, "unregister", X)
    with pytest.raises(TableNotFound):
        desk.admin.notify(OTHER.uri)


def test_tables_are_kept_by_their_uris_with_the_jobs_own_among_them(desk: Desk) -> None:
    desk.kind = SeveralKind()
    named = {"orders": TABLE.uri + "/", "items": OTHER.uri.lstrip("/")}
    desk.admin.register([RegisterRequest(X, spec(options={"tables": named}))])
    assert desk.row().spec.consumer.options["tables"] == {"orders": TABLE.uri, "items": OTHER.uri}
    with pytest.raises(InvalidRequest, match=TABLE.uri):
        desk.admin.register([RegisterRequest(X, spec(options={"tables": {"items": OTHER.uri}}))])


def test_a_wait_names_tables_by_their_names_or_uris_and_takes_the_newest_of_the_others(desk: Desk) -> None:
    row = running(desk)
    desk.reach(row, 6, JobState.COMPLETED, Reason.NONE, status(6, 3))
    for versions in ({"orders": 6}, {TABLE.uri: 6, "items": 2}, {"orders": 5, OTHER.uri: 3}):
        assert desk.admin.wait(X, None, 0.0, lambda: True, versions).applied_version == 6
    assert desk.admin.wait(X, 6, 0.0, lambda: True, {"items": 0}).applied_version == 6
    for behind in ({"items": 3}, {"orders": 6, "items": 4}, {"orders": 7}):
        with pytest.raises(TimedOut):
            desk.admin.wait(X, None, 0.0, lambda: True, behind)
    for wrong in ({"elsewhere": 1}, {"items": -1}):
        with pytest.raises(InvalidRequest, match=r"elsewhere|-1"):
            desk.admin.wait(X, None, 0.0, lambda: True, wrong)
