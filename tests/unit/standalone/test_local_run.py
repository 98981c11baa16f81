"""Proves the order of a run's jobs, what a failure leaves out, and that a run ends when it is interrupted.

Proves that a forecast says what the run after it does, and writes nothing.

Proves that a run goes on with its own targets, and builds or takes others only where its user says so.

Proves when a run takes a target for current by the logs alone, and when an iteration has to find out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from iscp.model.api.api_requests import RegisterRequest
from iscp.model.job.iteration import Iteration, JobOutcome, SparkNeed
from iscp.model.job.job_row import JobRow
from iscp.model.job.registration_id import parse_job_id
from iscp.model.run.run_plan import Forecast, JobForecast, ResultState, RunPlan, RunResult, TargetStanding
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import ErrorCode, InvalidRequest, IscpError, StorageError, TableNotFound
from iscp.model.values.watermark import Position, SourceMark, Watermark
from iscp.ports.consumer import ConsumerEnvironment, Needs
from iscp.ports.engine import leave_to_spark, note_spark
from iscp.ports.source import TableDescription
from iscp.ports.system import Guard
from iscp.standalone.local_run import BROKEN_OFF, INTERRUPTED, SUPERSEDED_TRIES_MAX, RunOrders, forecast_run
from tests.fakes.catalog import FakeCatalog
from tests.fakes.local_runs import TABLE, FailingRunner, Local, failing
from tests.fakes.pipeline import FakeKind
from tests.fakes.runner import FakeRunner, GatedRunner

WAIT_S = 20.0


def states(results: list[RunResult]) -> dict[str, ResultState]:
    return {each.name: each.state for each in results}


def chain(local: Local) -> list[RegisterRequest]:
    """`c` reads what `b` makes of the target of `a`; `d` reads another table. The files have them the other way."""
    for uri in ("/lake/a", "/lake/b", "/lake/others"):
        local.add_table(uri)
    wanted = [("d", "/lake/others"), ("c", "/lake/b"), ("b", "/lake/a"), ("a", "/lake/orders")]
    return [local.request(name, table) for name, table in wanted]


def test_a_run_builds_targets_and_the_next_one_writes_nothing(local: Local) -> None:
    run, heard = local.run(local.request("a"), local.request("b"))
    assert states(run.run()) == {"a": ResultState.UPDATED, "b": ResultState.UPDATED}
    assert sorted(heard.begun_names) == ["a", "b"]
    assert local.target("a").rows == local.source.states[-1]
    commits = list(local.target("a").commits)

    again, _ = local.run(local.request("a"), local.request("b"))
    found = again.run()
    assert states(found) == {"a": ResultState.CURRENT, "b": ResultState.CURRENT}
    assert [each.from_version for each in found] == [1, 1]
    assert local.target("a").commits == commits


def test_a_job_comes_after_the_one_that_makes_its_table_and_results_are_in_the_files_order(local: Local) -> None:
    runner = FailingRunner()
    run, _ = local.run(*chain(local), runner=runner)
    assert [each.name for each in run.run()] == ["d", "c", "b", "a"]
    assert [name for name in runner.ran if name != "d"] == ["a", "b", "c"]


def test_jobs_of_one_table_are_one_iteration(local: Local) -> None:
    runner = FailingRunner()
    run, _ = local.run(local.request("a"), local.request("b"), runner=runner)
    run.run()
    assert (runner.order, runner.ran) == ([1], ["a", "b"])


def test_no_more_units_run_at_once_than_allowed(local: Local) -> None:
    tables = [f"/lake/t{number}" for number in range(5)]
    for uri in tables:
        local.add_table(uri)
    runner = FailingRunner()
    run, _ = local.run(*(local.request(f"j{n}", uri) for n, uri in enumerate(tables)), runner=runner, parallel=1)
    assert len(run.run()) == len(runner.order) == 5
    assert runner.most_running == 1


def test_a_failure_skips_what_reads_its_target_and_nothing_else(local: Local) -> None:
    runner = FailingRunner()
    runner.faults["a"] = [failing(ErrorCode.INVALID_REQUEST, "a is wrong")]
    run, heard = local.run(*chain(local), runner=runner)
    found = {each.name: each for each in run.run()}
    assert states(list(found.values())) == {
        "d": ResultState.UPDATED,
        "c": ResultState.SKIPPED,
        "b": ResultState.SKIPPED,
        "a": ResultState.FAILED,
    }
    assert found["b"].error == "reads the target of 'a', which failed"
    assert found["b"].error_code == ErrorCode.JOB_FAILED
    assert {each.name for each in heard.ended_results} == {"a", "b", "c", "d"}
    assert not {"b", "c"} & set(heard.begun_names)


def test_what_cannot_be_registered_fails_by_itself(local: Local) -> None:
    runner = FailingRunner()
    run, _ = local.run(local.request("a", "/lake/missing"), local.request("b"), runner=runner)
    found = run.run()
    assert states(found) == {"a": ResultState.FAILED, "b": ResultState.UPDATED}
    assert found[0].error_code == ErrorCode.TABLE_NOT_FOUND
    assert "/lake/missing" in found[0].error


def test_fail_fast_begins_nothing_more(local: Local) -> None:
    runner = FailingRunner()
    runner.faults["a"] = [failing(ErrorCode.INVALID_REQUEST, "a is wrong")]
    requests = [each for each in chain(local) if each.job.name != "d"]
    run, _ = local.run(*requests, runner=runner, fail_fast=True)
    assert states(run.run()) == {"c": ResultState.SKIPPED, "b": ResultState.SKIPPED, "a": ResultState.FAILED}
    assert runner.ran == ["a"]


def test_a_job_that_another_run_has_claimed_at_once_is_gone_on_with(local: Local) -> None:
    request = local.request("a")

    def lose(outcome: JobOutcome) -> JobOutcome:
        ids.append(outcome.row.job_id)
        ids.append(local.keep("a", local.mark(request), run=True, time="fffffffffff0"))
        return failing(ErrorCode.SUPERSEDED, "belongs to a later one")(outcome)

    def note(outcome: JobOutcome) -> JobOutcome:
        ids.append(outcome.row.job_id)
        return outcome

    ids: list[str] = []
    runner = FailingRunner()
    runner.faults["a"] = [lose, note]
    # Another version is there by then, so that the second try has something to do.
    local.source.commit({3: "c"})
    runner.version = 2
    (found,) = local.run(request, runner=runner)[0].run()
    assert found.ok, found.error
    assert ids[-1] == ids[1] != ids[0]


def test_a_job_that_others_claim_again_and_again_fails_in_the_end(local: Local) -> None:
    runner = FailingRunner()
    runner.faults["a"] = [failing(ErrorCode.SUPERSEDED, "belongs to a later one")] * 10
    run, _ = local.run(local.request("a"), runner=runner)
    (found,) = run.run()
    assert (found.state, found.error_code) == (ResultState.FAILED, ErrorCode.SUPERSEDED)
    assert len(runner.ran) == SUPERSEDED_TRIES_MAX


def test_a_full_refresh_builds_targets_that_are_current(local: Local) -> None:
    local.run(local.request("a"))[0].run()
    local.target("a").rows = {9: "x"}
    (found,) = local.run(local.request("a"), orders=RunOrders(full_refresh=True))[0].run()
    assert (found.state, found.from_version) == (ResultState.UPDATED, -1)
    assert local.target("a").rows == local.source.states[-1]


def test_a_stop_ends_what_runs_and_skips_the_rest(local: Local) -> None:
    runner = GatedRunner()
    requests = [each for each in chain(local) if each.job.name != "d"]
    run, _ = local.run(*requests, runner=runner)
    pause = threading.Event()

    def stop() -> None:
        while not runner.running:
            pause.wait(0.01)
        run.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    found = {each.name: each for each in run.run()}
    stopping.join(WAIT_S)
    assert (found["a"].state, found["a"].error_code) == (ResultState.FAILED, ErrorCode.CANCELED)
    assert [found[name].state for name in "bc"] == [ResultState.SKIPPED] * 2
    assert found["b"].error_code == ErrorCode.CANCELED
    assert runner.order == [1]


def test_a_run_that_is_stopped_before_it_begins_skips_all(local: Local) -> None:
    runner = FakeRunner()
    run, _ = local.run(local.request("a"), runner=runner)
    run.stop()
    (found,) = run.run()
    assert (found.state, found.error, runner.order) == (ResultState.SKIPPED, INTERRUPTED, [])


def test_an_interrupt_is_raised_once_all_has_ended(local: Local) -> None:
    runner = FailingRunner()
    requests = [each for each in chain(local) if each.job.name != "d"]
    run, heard = local.run(*requests, runner=runner)

    def interrupt(result: RunResult) -> None:
        if result.name == "a":
            raise KeyboardInterrupt

    heard.on_ended = interrupt
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert runner.running == 0
    assert "c" not in runner.ran


def test_a_table_that_breaks_its_unit_is_named_and_the_others_go_on(local: Local) -> None:
    local.add_table("/lake/others")

    def broken(iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        if iteration.table_uri == "/lake/others":
            raise ZeroDivisionError("by nothing")
        raise IscpError("is wrong", code=ErrorCode.INVALID_REQUEST)

    run, _ = local.run(local.request("a"), local.request("b", "/lake/others"), runner=FakeRunner(broken))
    found = run.run()
    assert [each.state for each in found] == [ResultState.FAILED] * 2
    assert found[0].error == "is wrong"
    assert "ZeroDivisionError" in found[1].error


def test_a_panic_of_a_library_is_named_and_does_not_hang_the_run(local: Local) -> None:
    class PanicError(BaseException):
        pass

    def broken(iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        raise PanicError("index out of bounds")

    run, _ = local.run(local.request("a"), runner=FakeRunner(broken))
    (found,) = run.run()
    assert (found.state, found.error_code) == (ResultState.FAILED, ErrorCode.INTERNAL)
    assert found.error == f"{BROKEN_OFF}: PanicError: index out of bounds"


class SparkCatalog(FakeCatalog):
    """Opens tables by Spark, which it starts."""

    def describe(self, table: str) -> TableDescription:
        leave_to_spark("it is opened")
        note_spark(started=True)
        return super().describe(table)


def needing(reason: str) -> Callable[[JobOutcome], JobOutcome]:
    return lambda outcome: replace(outcome, spark=SparkNeed((reason,)))


def test_a_result_says_what_its_job_needed_spark_for_from_its_registration_on() -> None:
    local, runner = Local(catalog=SparkCatalog()), FailingRunner()
    runner.faults["a"] = [needing("it is merged")]
    run, _ = local.run(local.request("a"), runner=runner)
    (found,) = run.run()
    assert (found.spark, found.started_spark) == ("it is opened; it is merged", True)
    assert found.document()["spark"] == found.spark


def test_a_job_that_needed_no_spark_says_none_beside_one_that_did(local: Local) -> None:
    runner = FailingRunner()
    runner.faults["a"] = [
        lambda outcome: needing("a filter")(failing(ErrorCode.SCHEMA_CHANGED, "it has gone")(outcome))
    ]
    run, _ = local.run(local.request("a"), local.request("b"), runner=runner)
    first, second = run.run()
    assert (first.state, first.spark, first.started_spark) == (ResultState.FAILED, "a filter", False)
    assert (second.spark, second.started_spark) == (None, False)


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


class SettledKind(FakeKind):
    """A kind that says whether there is something to do.

    `holds` are those of each job. `faults` are raised by `settled_at`, one after another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.holds: dict[str, float] = {}
        self.faults: list[Exception] = []

    def settled_at(self, row: JobRow, environment: ConsumerEnvironment) -> Position | None:
        if self.faults:
            raise self.faults.pop()
        position = self.open(row, environment).position(row)
        return None if position.void else position

    def held(self, spec: ConsumerSpec) -> dict[str, float]:
        return self.holds


@pytest.fixture
def settled() -> Local:
    return Local(kind=SettledKind())


def kept(local: Local, version: int = 1) -> RegisterRequest:
    """A request whose target a run keeps at this version; the source is at version 1."""
    request = local.request("copy")
    local.keep("copy", local.mark(request), run=True, version=version)
    target = local.target("copy")
    target.position = replace(target.position, watermark=Watermark(version, local.source.at_s[version]))
    return request


def test_a_target_at_the_newest_commit_is_current_and_no_iteration_begins(settled: Local) -> None:
    runner, request = FailingRunner(), kept(settled)
    run, heard = settled.run(request, runner=runner)
    (result,) = run.run()
    assert (result.state, result.from_version, result.to_version) == (ResultState.CURRENT, 1, 1)
    assert (result.table, result.target) == (TABLE, "/lake/copy")
    assert heard.ended_results == [result]
    assert runner.ran == []


def test_jobs_with_something_to_do_are_run_beside_those_without(settled: Local) -> None:
    runner = FailingRunner()
    run, _ = settled.run(kept(settled), settled.request("other"), runner=runner)
    assert next(iter(run.run())).state is ResultState.CURRENT
    assert runner.ran == ["other"]


def test_a_full_refresh_takes_nothing_for_current(settled: Local) -> None:
    runner = FailingRunner()
    run, _ = settled.run(kept(settled), runner=runner, orders=RunOrders(full_refresh=True))
    run.run()
    assert runner.ran == ["copy"]


def assert_left_to_an_iteration(local: Local, request: RegisterRequest) -> None:
    assert local.registrar.find_current(request) is None


def test_a_consumer_that_does_not_say_is_left_to_an_iteration(local: Local) -> None:
    assert_left_to_an_iteration(local, kept(local))


def test_an_older_version_is_left_to_an_iteration(settled: Local) -> None:
    assert_left_to_an_iteration(settled, kept(settled, version=0))
    assert settled.registrar.find_current(kept(settled)) is not None
    settled.source.commit({3: "c"})
    assert_left_to_an_iteration(settled, kept(settled))


@pytest.mark.parametrize(
    "other",
    [
        {"void": "others have written"},
        {"watermark": Watermark(1, 1.0, 1, 3)},
        {"watermark": Watermark(1, 99.0)},
        {"sources": {"/lake/gone": SourceMark("t-9", Watermark(7, 7.0))}},
        {"job_id": "000000000001-" + "0" * 16 + "-run"},
        {"job_id": ""},
    ],
    ids=["diverged", "a step of a commit", "a log that was recreated", "another table", "another spec", "nobody's"],
)
def test_a_position_that_is_another_is_left_to_an_iteration(settled: Local, other: dict[str, object]) -> None:
    request = kept(settled)
    target = settled.target("copy")
    target.position = replace(target.position, **other)  # type: ignore[arg-type]
    assert_left_to_an_iteration(settled, request)


def test_jobs_that_hold_tables_are_left_to_an_iteration_and_what_ranges_share_is_not(settled: Local) -> None:
    request, kind = kept(settled), settled.kind
    assert isinstance(kind, SettledKind)
    kind.holds = {TABLE: 60.0}
    assert_left_to_an_iteration(settled, request)
    kind.holds = {}
    kind.open_range = kind.open
    assert settled.registrar.find_current(request) is not None


def test_a_fault_is_left_to_whoever_registers_the_job(settled: Local) -> None:
    request, kind = kept(settled), settled.kind
    assert isinstance(kind, SettledKind)
    assert settled.registrar.find_current(request) is not None
    kind.faults.append(StorageError("the target does not answer"))
    assert_left_to_an_iteration(settled, request)
