"""Proves that a run goes on with its own targets, and builds or takes others only where its user says so."""

from __future__ import annotations

import pytest

from iscp.core.job.registration_id import parse_job_id
from iscp.core.run.target_standing import TargetStanding
from iscp.core.values.errors import ErrorCode, InvalidRequest, TableNotFound
from iscp.core.values.watermark import Position, Watermark
from iscp.runtime.local.job_registrar import RunOrders
from tests.fakes.local_runs import TABLE, Local


def test_a_plan_says_what_a_job_reads_and_makes_though_nothing_is_there(local: Local) -> None:
    planned = local.registrar.plan(local.request("copy", "/lake/later"), "jobs.yaml[4]")
    assert (planned.name, planned.reads, planned.target) == ("copy", ("/lake/later",), "/lake/copy")
    assert (planned.place, planned.shared) == ("jobs.yaml[4]", False)


def test_a_plan_refuses_names_that_no_job_can_have(local: Local) -> None:
    for name, fault in (("a*b", "would take for a pattern"), ("", "must have 1 to"), ("a\nb", "job.name is")):
        with pytest.raises(InvalidRequest, match=fault):
            local.registrar.plan(local.request(name, "/lake/later"), "jobs.yaml[4]")


def test_a_new_target_is_begun_under_an_id_of_a_run_with_the_mark_of_its_spec(local: Local) -> None:
    request = local.request("copy")
    found = local.registrar.register(request, RunOrders())
    made = parse_job_id(found.row.job_id)
    assert found.standing is TargetStanding.NEW
    assert (made.mark, made.run, made.full, found.full) == (local.mark(request), True, False, False)
    assert found.applied == -1
    assert local.kind.validated == ["/lake/copy"]
    assert local.target("copy").commits == []


def test_a_target_of_a_run_of_this_spec_is_gone_on_with_under_its_id(local: Local) -> None:
    request = local.request("copy")
    job_id = local.keep("copy", local.mark(request), run=True)
    found = local.registrar.register(request, RunOrders())
    assert found.standing is TargetStanding.SAME
    assert (found.row.job_id, found.row.seq, found.row.watermark.version) == (job_id, 3, 1)
    assert (found.applied, found.full) == (1, False)
    assert local.kind.validated == []  # nothing is checked twice


def test_a_full_refresh_builds_a_target_of_this_spec_under_a_later_id(local: Local) -> None:
    request = local.request("copy")
    before = local.keep("copy", local.mark(request), run=True)
    found = local.registrar.register(request, RunOrders(full_refresh=True))
    assert found.full
    assert found.applied == -1
    assert found.row.job_id > before
    assert parse_job_id(found.row.job_id).full


def test_the_id_is_later_than_the_targets_where_the_clock_is_behind(local: Local) -> None:
    request = local.request("copy")
    before = local.keep("copy", local.mark(request), run=True, time="fffffffffff0")
    assert local.registrar.register(request, RunOrders(full_refresh=True)).row.job_id > before


def test_rows_of_another_spec_are_refused_with_the_remedy(local: Local) -> None:
    local.keep("copy", local.mark(local.request("copy")), run=True)
    with pytest.raises(InvalidRequest, match="were made by another spec") as refused:
        local.registrar.register(local.request("copy", where="id > 1"), RunOrders())
    assert refused.value.code == ErrorCode.TARGET_UNUSABLE
    assert "--full-refresh" in str(refused.value)


@pytest.mark.parametrize(("orders", "rebuild"), [(RunOrders(full_refresh=True), False), (RunOrders(), True)])
def test_rows_of_another_spec_are_built_again_where_the_user_agrees(
    local: Local, orders: RunOrders, rebuild: bool
) -> None:
    before = local.keep("copy", local.mark(local.request("copy")), run=True)
    request = local.request("copy", where="id > 1")
    found = local.registrar.register(request, orders, rebuild=rebuild)
    assert found.standing is TargetStanding.OTHER_SPEC
    assert (found.full, found.applied) == (True, -1)
    assert found.row.job_id > before
    assert parse_job_id(found.row.job_id).mark == local.mark(request)


def test_leave_to_rebuild_builds_nothing_where_the_spec_is_the_same(local: Local) -> None:
    request = local.request("copy")
    job_id = local.keep("copy", local.mark(request), run=True)
    found = local.registrar.register(request, RunOrders(), rebuild=True)
    assert (found.row.job_id, found.full) == (job_id, False)


@pytest.mark.parametrize("orders", [RunOrders(), RunOrders(full_refresh=True)])
def test_a_target_of_a_cluster_is_refused_whatever_else_is_allowed(local: Local, orders: RunOrders) -> None:
    request = local.request("copy")
    job_id = local.keep("copy", local.mark(request), run=False)
    with pytest.raises(InvalidRequest, match=f"kept by a job of a cluster .registration {job_id}") as refused:
        local.registrar.register(request, orders, rebuild=True)
    assert refused.value.code == ErrorCode.TARGET_UNUSABLE
    assert "--take-over" in str(refused.value)


def test_a_target_without_a_registration_counts_as_a_clusters(local: Local) -> None:
    local.target("copy").position = Position(3, Watermark(1, 1.0))
    with pytest.raises(InvalidRequest, match="registration unknown"):
        local.registrar.register(local.request("copy"), RunOrders())


def test_a_target_of_a_cluster_is_taken_over_at_its_position(local: Local) -> None:
    request = local.request("copy")
    before = local.keep("copy", local.mark(request), run=False)
    found = local.registrar.register(request, RunOrders(take_over=True))
    assert found.standing is TargetStanding.KEPT_BY_CLUSTER
    assert (found.full, found.applied) == (False, 1)
    assert found.row.job_id > before
    assert parse_job_id(found.row.job_id).run


def test_a_target_of_a_cluster_with_another_spec_is_taken_over_only_to_be_built_again(local: Local) -> None:
    local.keep("copy", local.mark(local.request("copy")), run=False)
    request = local.request("copy", where="id > 1")
    with pytest.raises(InvalidRequest, match="another spec"):
        local.registrar.register(request, RunOrders(take_over=True))
    assert local.registrar.register(request, RunOrders(full_refresh=True, take_over=True)).full


def test_a_new_job_on_a_target_that_may_not_be_built_is_refused(local: Local) -> None:
    local.kind.archives.add("/lake/copy")
    with pytest.raises(InvalidRequest, match="holds rows already"):
        local.registrar.register(local.request("copy"), RunOrders())


def test_what_its_consumer_refuses_is_refused_before_anything_is_written(local: Local) -> None:
    local.kind.refusals["/lake/copy"] = InvalidRequest("is wrong", field="key", remedy="Correct it")
    with pytest.raises(InvalidRequest, match="is wrong"):
        local.registrar.register(local.request("copy"), RunOrders())
    assert local.target("copy").commits == []


def test_a_table_that_is_not_there_is_named(local: Local) -> None:
    with pytest.raises(TableNotFound, match="/lake/later"):
        local.registrar.register(local.request("copy", "/lake/later"), RunOrders())
    assert TABLE in local.catalog.tables
