"""Proves that a forecast says what the run after it does, and writes nothing."""

from __future__ import annotations

from iscp.core.api.api_requests import RegisterRequest
from iscp.core.run.run_forecast import Forecast, JobForecast
from iscp.core.run.run_plan import RunPlan
from iscp.ports.consumer import Needs
from iscp.runtime.local.job_registrar import RunOrders
from iscp.runtime.local.run_forecaster import forecast_run
from tests.fakes.local_runs import Local

NOTHING_ALLOWED = RunOrders()


def forecast(local: Local, *requests: RegisterRequest, orders: RunOrders = NOTHING_ALLOWED) -> dict[str, JobForecast]:
    jobs = local.requested(*requests)
    plan = RunPlan([each.planned for each in jobs], range(len(jobs)))
    commits = {path: list(target.commits) for path, target in local.kind.targets.items()}
    found = forecast_run(local.registrar, local.source, jobs, plan, orders)
    assert all(target.commits == commits.get(path, []) for path, target in local.kind.targets.items())
    assert [each.name for each in found] == [each.planned.name for each in jobs]
    return {each.name: each for each in found}


def test_a_new_target_would_be_created_then_be_current_then_be_updated(local: Local) -> None:
    request = local.request("a")
    assert forecast(local, request)["a"].action is Forecast.CREATE
    local.run(request)[0].run()
    assert forecast(local, request)["a"].action is Forecast.CURRENT
    local.source.commit({3: "c"})
    found = forecast(local, request)["a"]
    assert (found.action, found.why) == (Forecast.UPDATE, "/lake/orders: 1 → 2")
    assert found.versions == {"/lake/orders": (1, 2)}


def test_a_reader_of_a_target_that_would_be_created_is_created_after_it(local: Local) -> None:
    found = forecast(local, local.request("b", "/lake/a"), local.request("a"))
    assert [each.action for each in found.values()] == [Forecast.CREATE, Forecast.CREATE]
    assert found["b"].why == "once 'a' is there"


def test_a_reader_of_a_target_that_would_be_updated_is_updated(local: Local) -> None:
    local.add_table("/lake/a")
    requests = local.request("a"), local.request("b", "/lake/a")
    local.run(*requests)[0].run()
    assert {each.action for each in forecast(local, *requests).values()} == {Forecast.CURRENT}
    found = forecast(local, *requests, orders=RunOrders(full_refresh=True))
    assert {each.action for each in found.values()} == {Forecast.REBUILD}
    local.target("b").position = local.target("a").position  # as of another spec
    assert forecast(local, *requests)["b"].action is Forecast.REFUSED


def test_a_missing_table_is_refused_and_its_readers_are_skipped(local: Local) -> None:
    found = forecast(local, local.request("a", "/lake/missing"), local.request("b", "/lake/a"))
    assert [each.action for each in found.values()] == [Forecast.REFUSED, Forecast.SKIPPED]
    assert "/lake/missing" in found["a"].why
    assert found["a"].versions == {}


def test_a_target_of_a_cluster_is_refused_or_taken_over(local: Local) -> None:
    request = local.request("a")
    local.keep("a", local.mark(request), run=False)
    refused = forecast(local, request)["a"]
    assert (refused.action, "--take-over" in refused.why) == (Forecast.REFUSED, True)
    assert forecast(local, request, orders=RunOrders(take_over=True))["a"].action is Forecast.TAKE_OVER


def test_an_error_that_nobody_expects_is_the_jobs_own(local: Local) -> None:
    request = local.request("a")
    local.run(request)[0].run()
    local.source.gone.add(1)
    found = forecast(local, request)["a"]
    assert (found.action, "version 1 is gone" in found.why) == (Forecast.REFUSED, True)


def test_spark_will_be_needed_where_a_kind_builds_by_it_and_only_then(local: Local) -> None:
    request = local.request("a")
    assert forecast(local, request)["a"].spark is None
    local.kind.needs = Needs(built_by_spark=True)
    assert forecast(local, request)["a"].spark == "all rows are computed (nothing is there)"
    local.run(request)[0].run()
    local.source.commit({3: "c"})
    assert forecast(local, request)["a"].spark is None, "it is not known before the changes are read"
    assert forecast(local, request, orders=RunOrders(full_refresh=True))["a"].spark is not None
