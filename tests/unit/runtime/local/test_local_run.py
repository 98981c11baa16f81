"""Proves the order of a run's jobs, what a failure leaves out, and that a run ends when it is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from iscp.core.api.api_requests import RegisterRequest
from iscp.core.job.iteration import Iteration, JobOutcome
from iscp.core.job.usage import SparkNeed
from iscp.core.run.run_result import ResultState, RunResult
from iscp.core.values.errors import ErrorCode, IscpError
from iscp.ports.catalog import TableDescription
from iscp.ports.system import Guard
from iscp.ports.work_timer import leave_to_spark, note_spark
from iscp.runtime.local.job_registrar import RunOrders
from iscp.runtime.local.local_run import BROKEN_OFF, INTERRUPTED, SUPERSEDED_TRIES_MAX
from tests.fakes.catalog import FakeCatalog
from tests.fakes.local_runs import FailingRunner, Local, failing
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
