"""Proves that the jobs of one table are brought to its newest version, with retries, and end when they are stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable

from iscp.model.job.iteration import Iteration, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.run.run_plan import TRIES_MAX, ResultState
from iscp.model.values.errors import ErrorCode, StorageError
from iscp.ports.system import Guard
from iscp.standalone.local_run import RunOrders
from tests.fakes.local_runs import TABLE, FailingRunner, Local, failing
from tests.fakes.runner import FakeRunner, GatedRunner, applied

WAIT_S = 20.0


def rows(local: Local, *names: str) -> list[JobRow]:
    return [local.registrar.register(local.request(name), RunOrders()).row for name in names]


def test_new_targets_are_built_and_those_that_are_current_are_not_written_to(local: Local) -> None:
    units = local.units()
    (first,) = units.bring_up(rows(local, "copy"))
    assert (first.state, first.from_version, first.to_version, first.rows) == (ResultState.UPDATED, -1, 1, 2)
    assert local.target("copy").rows == local.source.states[-1]
    commits = list(local.target("copy").commits)

    (again,) = units.bring_up(rows(local, "copy"))
    assert (again.state, again.to_version, again.rows, again.iterations) == (ResultState.CURRENT, 1, 0, 0)
    assert local.target("copy").commits == commits


def test_changes_are_applied_from_the_position_of_the_target(local: Local) -> None:
    local.units().bring_up(rows(local, "copy"))
    local.source.commit({2: None, 3: "c"})
    (found,) = local.units().bring_up(rows(local, "copy"))
    assert (found.state, found.from_version, found.to_version) == (ResultState.UPDATED, 1, 2)
    assert local.target("copy").rows == {1: "a", 3: "c"}


def test_jobs_of_one_table_have_a_result_each_in_their_order(local: Local) -> None:
    runner = FailingRunner()
    runner.faults["b"] = [failing(ErrorCode.INVALID_REQUEST, "b is wrong")]
    found = local.units(runner).bring_up(rows(local, "a", "b", "c"))
    assert [(each.name, each.state) for each in found] == [
        ("a", ResultState.UPDATED),
        ("b", ResultState.FAILED),
        ("c", ResultState.UPDATED),
    ]
    assert runner.order == [1]
    assert (found[1].error_code, found[1].error) == (ErrorCode.INVALID_REQUEST, "b is wrong")


def test_a_fault_is_said_in_words_of_a_run_and_not_with_commands_of_a_cluster(local: Local) -> None:
    runner = FailingRunner()
    runner.faults["b"] = [failing(ErrorCode.SCHEMA_CHANGED, "a column is gone. Bring it back and resume the job")]
    (found,) = local.units(runner).bring_up(rows(local, "b"))
    assert found.error == "a column is gone. Bring it back and run the job again"


def test_what_fails_for_a_while_is_tried_again_and_the_others_are_not(local: Local) -> None:
    runner = FailingRunner()
    runner.faults["b"] = [failing(ErrorCode.CONFLICT, "another writer was first")]
    found = local.units(runner).bring_up(rows(local, "a", "b"))
    assert [each.state for each in found] == [ResultState.UPDATED, ResultState.UPDATED]
    assert runner.ran == ["a", "b", "b"]
    assert found[1].error == ""


def test_the_error_of_an_iteration_is_that_of_all_its_jobs(local: Local) -> None:
    def broken(iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        raise StorageError("the disk is full")

    found = local.units(FakeRunner(broken)).bring_up(rows(local, "a", "b"))
    assert [(each.state, each.error) for each in found] == [(ResultState.FAILED, "the disk is full")] * 2


def test_an_error_that_nobody_expects_is_named(local: Local) -> None:
    def broken(iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        raise ZeroDivisionError("by nothing")

    (found,) = local.units(FakeRunner(broken)).bring_up(rows(local, "a"))
    assert (found.state, found.error_code) == (ResultState.FAILED, ErrorCode.INTERNAL)
    assert "ZeroDivisionError" in found.error


def test_an_iteration_without_progress_ends_the_job(local: Local) -> None:
    def idle(iteration: Iteration, guard: Guard) -> tuple[JobOutcome, ...]:
        return tuple(JobOutcome(row, row.watermark, row.seq) for row in iteration.jobs)

    runner = FakeRunner(idle)
    (found,) = local.units(runner).bring_up(rows(local, "a"))
    assert (found.state, found.error) == (ResultState.FAILED, "the iteration ended without progress")
    assert runner.order == [1]


def test_a_target_that_is_far_behind_takes_several_iterations(local: Local) -> None:
    local.source.commit({3: "c"})
    runner = FakeRunner(lambda iteration, guard: applied(iteration, len(runner.order)))
    (found,) = local.units(runner).bring_up(rows(local, "a"))
    assert (found.state, found.to_version, found.iterations, found.rows) == (ResultState.UPDATED, 2, 2, 2)
    assert found.from_version == -1


def test_a_table_that_cannot_be_read_fails_its_jobs_before_anything_is_begun(local: Local) -> None:
    wanted = rows(local, "a")
    local.source.gone.add(1)
    runner = FakeRunner()
    (found,) = local.units(runner).bring_up(wanted)
    assert (found.state, runner.order) == (ResultState.FAILED, [])
    assert "version 1 is gone" in found.error


def test_a_stop_ends_what_runs_before_its_next_commit(local: Local) -> None:
    runner = GatedRunner()
    units = local.units(runner)
    wanted = rows(local, "a")

    def stop() -> None:
        pause = threading.Event()
        while not runner.running:
            pause.wait(0.01)
        units.stop()

    stopping = threading.Thread(target=stop)
    stopping.start()
    (found,) = units.bring_up(wanted)
    stopping.join(WAIT_S)
    assert (found.state, found.error_code) == (ResultState.FAILED, ErrorCode.CANCELED)
    assert runner.cancelled == [1]


def test_nothing_is_begun_after_a_stop(local: Local) -> None:
    runner = FakeRunner()
    units = local.units(runner)
    units.stop()
    (found,) = units.bring_up(rows(local, "a"))
    assert (found.state, found.error_code, runner.order) == (ResultState.FAILED, ErrorCode.CANCELED, [])


def test_a_stop_ends_the_wait_for_another_try(local: Local) -> None:
    runner = FailingRunner()
    units = local.units(runner)

    def fail_and_stop(outcome: JobOutcome) -> JobOutcome:
        units.stop()
        return failing(ErrorCode.CONFLICT, "another writer was first")(outcome)

    runner.faults["a"] = [fail_and_stop] * TRIES_MAX
    (found,) = units.bring_up(rows(local, "a"))
    assert (found.state, found.error_code, runner.ran) == (ResultState.FAILED, ErrorCode.CANCELED, ["a"])


def test_a_comparison_says_what_differs_and_repairs_it(local: Local) -> None:
    units = local.units()
    units.bring_up(rows(local, "copy"))
    local.target("copy").rows = {1: "a", 9: "x"}
    (row,) = rows(local, "copy")
    verified = units.verify(row, repair=False)
    assert not verified.equal
    assert local.target("copy").rows == {1: "a", 9: "x"}
    units.verify(row, repair=True)
    assert local.target("copy").rows == local.source.states[-1]


def test_a_result_says_what_was_left_undone_at_a_target_that_was_changed(local: Local) -> None:
    heard: list[str] = []

    def maintained(row: JobRow, stopped: Callable[[], bool]) -> str:
        heard.append(row.key.job_name)
        return "the index is not maintained: a disk is full"

    local.kind.maintained = maintained
    (first,) = local.units().bring_up(rows(local, "copy"))
    assert (first.state, first.warning) == (ResultState.UPDATED, "the index is not maintained: a disk is full")
    assert first.document()["warning"] == first.warning
    (again,) = local.units().bring_up(rows(local, "copy"))
    assert (again.warning, heard) == ("", ["copy"]), "nothing is due at a target that was not written to"


def test_a_table_is_read_up_to_its_end_and_no_further(local: Local) -> None:
    wanted = rows(local, "copy")
    local.source.commit({3: "c"})
    (found,) = local.units().bring_up(wanted, ends={TABLE: 1})
    assert (found.state, found.to_version) == (ResultState.UPDATED, 1)
    assert local.target("copy").rows == local.source.states[1]
