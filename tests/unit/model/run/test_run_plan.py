"""Proves that no error that a run can meet names a command that only a cluster has.

Proves what is said of a job that would be run, and why.

Proves when a job of a run goes on, tries again, and ends, and what its result says then.

Proves that a run begins each job once, after what it reads, and skips only what a failure concerns.

Proves which jobs patterns choose, and that a pattern for nothing is refused.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from iscp.model.job.iteration import DataType, JobOutcome
from iscp.model.job.job_row import JobRow
from iscp.model.run.run_plan import (
    FULL,
    PATTERNS_MAX,
    RETRY_BASE_S,
    TRIES_MAX,
    Forecast,
    JobProgress,
    JobSelection,
    NamedJob,
    PlannedJob,
    ResultState,
    RunPlan,
    RunResult,
    TargetStanding,
    forecast_action,
    words_of_a_run,
)
from iscp.model.values.errors import ErrorCode, InvalidRequest
from iscp.model.values.ids import JobKey
from iscp.model.values.watermark import Watermark

ROOT = Path(__file__).parents[4] / "iscp"

ROOMS = (
    *("consumers", "views", "index", "engine", "standalone", "delta", "spark", "storage", "model/spec", "model/run"),
    "server/boards",
)
"""The rooms of what runs use of the code that clusters use too."""

OF_CLUSTERS = (
    *("delta/joblog", "model/spec/spec_parsing.py", "model/run/run_plan.py"),
    *("engine/account_turns.py", "server/boards/cluster_board.py"),
)
"""Parts of those rooms that a run does not use: the job log, changes of registered jobs, accounts, the cluster's board;
and the words themselves.
"""

OF_A_CLUSTER = re.compile(r"iscp-admin|`job |[Rr]esync|[Rr]esume the|[Rr]egister (the|a|it) |\bthe nodes?\b")


def texts(tree: ast.Module) -> Iterator[str]:
    """Return the texts of a module that are no docstrings, with `{}` for what is put in."""
    parts = [each for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for each in node.values]
    left_out = {id(each) for each in parts}
    left_out |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in left_out:
            yield node.value


def named() -> list[tuple[str, str]]:
    """Return the texts that name what only a cluster has, with their modules."""
    modules = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    places = {path: path.relative_to(ROOT).as_posix() for path in modules}
    return [
        (place, text)
        for path, place in places.items()
        if not place.startswith(OF_CLUSTERS)
        for text in texts(ast.parse(path.read_text()))
        if OF_A_CLUSTER.search(text) and " " in text  # a verb alone is no sentence
    ]


def test_every_remedy_that_names_what_a_cluster_has_is_said_otherwise_in_a_run() -> None:
    found = named()
    assert len(found) > 25, "they are found"
    left = {place: words for place, text in found if OF_A_CLUSTER.search(words := words_of_a_run(text))}
    assert left == {}


@pytest.mark.parametrize(
    ("of_a_cluster", "of_a_run"),
    [
        ("Bring it back and resume the job", "Bring it back and run the job again"),
        ("`iscp-admin notify` has the view brought to them", "A refresh has the view brought to them"),
        ("Have it built by `iscp-admin job resync`", f"Have it built by {FULL}"),
        ("or `iscp-admin job resync` it with another query", f"or give it, by {FULL}, another query"),
        ("Restore what is gone, or resync the job", f"Restore what is gone, or build its target again by {FULL}"),
        ("the kind changefeed; see `iscp-admin job list`", "the kind changefeed"),
        ("Repair it, on every node, and restart them", "Repair it, and run the job again"),
        ("Install it on every node, and restart them", "Install it, and run the job again"),
        ("Name a path that the node may write", "Name a path that you may write"),
        ("the disk is full", "the disk is full"),
    ],
)
def test_the_words_of_a_run(of_a_cluster: str, of_a_run: str) -> None:
    assert words_of_a_run(of_a_cluster) == of_a_run


def forecast(
    standing: TargetStanding = TargetStanding.SAME,
    versions: Mapping[str, tuple[int, int]] | None = None,
    *,
    full: bool = False,
    void: str = "",
    upstream: Sequence[str] = (),
    replaced: Sequence[str] = (),
) -> tuple[Forecast, str]:
    return forecast_action(
        standing, versions or {"/t": (3, 3)}, full=full, void=void, upstream=upstream, replaced=replaced
    )


def test_a_target_whose_tables_have_not_changed_is_current() -> None:
    assert forecast() == (Forecast.CURRENT, "no table has changed")


@pytest.mark.parametrize("newest", [2, 4])
def test_another_version_is_a_change_also_if_it_is_a_lower_one(newest: int) -> None:
    assert forecast(versions={"/t": (3, newest), "/u": (1, 1)}) == (Forecast.UPDATE, f"/t: 3 → {newest}")


def test_a_table_that_was_replaced_is_named_though_its_version_is_the_same() -> None:
    assert forecast(replaced=["/t"]) == (Forecast.UPDATE, "/t was replaced")


def test_a_target_that_cannot_be_trusted_is_updated_for_that_reason() -> None:
    assert forecast(void="the target is not there", replaced=["/t"]) == (Forecast.UPDATE, "the target is not there")


def test_targets_that_would_be_written_are_named() -> None:
    assert forecast(upstream=["a", "b"]) == (Forecast.UPDATE, "reads 'a', 'b'")


def test_who_keeps_the_target_goes_before_what_has_changed() -> None:
    changed = {"/t": (3, 4)}
    assert forecast(TargetStanding.NEW, changed, full=True)[0] is Forecast.CREATE
    assert forecast(TargetStanding.KEPT_BY_CLUSTER, changed)[0] is Forecast.TAKE_OVER
    assert forecast(TargetStanding.OTHER_SPEC, changed, full=True) == (Forecast.REBUILD, "so requested")


ROW = JobRow(JobKey("a", "t", "j"), "1", "{}", "t", "/t")


def progress(goal: int = 5, at: int = 2) -> JobProgress:
    row = ROW._replace(watermark=Watermark(at, 1.0), seq=3)
    return JobProgress(row, goal, RunResult("j", "a", "replica", "/t", "/r", ResultState.CURRENT, from_version=at))


def outcome(version: int, step: int = 0, rows: int = 7, code: int = 0, *, committed: bool = True) -> JobOutcome:
    at = Watermark(version, 1.0, step, 4 if step else 0)
    return JobOutcome(
        ROW, at, 4, code, "why" if code else "", rows=rows, bytes=70, committed=committed, strategy_reason="because"
    )


def test_a_job_at_its_goal_has_ended() -> None:
    made = progress()
    made.take(outcome(5), 1.5)
    assert made.ended
    result = made.result
    assert (result.state, result.rows, result.bytes, result.iterations) == (ResultState.UPDATED, 7, 70, 1)
    assert (result.from_version, result.to_version, result.seconds) == (2, 5, 1.5)
    assert (result.strategy, result.reason) == (DataType.TAIL, "because")


def test_a_job_that_wrote_nothing_is_current() -> None:
    made = progress()
    made.take(outcome(6, committed=False), 0.1)
    assert made.ended
    assert made.result.state is ResultState.CURRENT
    assert made.result.to_version == 6


def test_a_commit_whose_answer_was_lost_is_an_update_when_the_next_try_finds_it() -> None:
    made = progress()
    made.take(replace(outcome(2, code=int(ErrorCode.STORAGE)), seq=3), 0.1)
    made.take(outcome(5, committed=False), 0.1)
    assert made.ended
    assert (made.result.state, made.result.to_version, made.result.iterations) == (ResultState.UPDATED, 5, 1)
    assert "answer" in made.result.reason


def test_a_failure_before_any_commit_leaves_a_job_current() -> None:
    made = progress()
    made.take(replace(outcome(2, code=int(ErrorCode.STORAGE)), seq=4), 0.1)
    made.take(outcome(5, committed=False), 0.1)
    assert made.result.state is ResultState.CURRENT


def test_a_job_goes_on_by_versions_and_by_steps_of_one() -> None:
    made = progress()
    for version, step in ((3, 0), (3, 1), (3, 2), (4, 0)):
        made.take(outcome(version, step), 1.0)
        assert not made.ended
    made.take(outcome(5), 2.0)
    assert made.ended
    assert (made.result.rows, made.result.iterations) == (35, 5)


def test_steps_of_the_goal_itself_are_gone_through() -> None:
    made = progress(goal=3)
    made.take(outcome(3, 1), 1.0)
    assert not made.ended


def test_a_job_that_does_not_move_has_failed() -> None:
    made = progress()
    made.take(outcome(2), 1.0)
    assert made.ended
    assert made.result.error == "the iteration ended without progress"


def test_what_is_temporary_is_tried_again_and_then_has_failed() -> None:
    made = progress()
    for number in range(TRIES_MAX - 1):
        made.take(outcome(2, code=ErrorCode.STORAGE), 1.0)
        assert (made.ended, made.retry_s) == (False, RETRY_BASE_S * 2**number)
    made.take(outcome(2, code=ErrorCode.STORAGE), 1.0)
    assert made.ended
    assert (made.result.state, made.result.error, made.result.error_code) == (
        ResultState.FAILED,
        "why",
        ErrorCode.STORAGE,
    )


def test_tries_are_counted_in_a_row() -> None:
    made = progress(goal=20)
    for version in range(3, 12):
        made.take(outcome(version - 1, code=ErrorCode.CONFLICT), 1.0)
        made.take(outcome(version), 1.0)
        assert not made.ended


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_REQUEST, ErrorCode.CANCELED, ErrorCode.TIMEOUT, ErrorCode.SUPERSEDED]
)
def test_what_no_try_can_help_ends_the_job(code: ErrorCode) -> None:
    made = progress()
    made.take(outcome(2, code=code), 1.0)
    assert made.ended
    assert made.result.error_code == code


def test_a_job_that_waits_for_tables_that_are_behind_checks_them_again_until_it_waits_no_longer() -> None:
    made = progress()
    waiting = replace(outcome(5, committed=False), waits_for="b", wait_s=9.0)
    made.take(waiting, 0.1)
    assert (made.ended, made.retry_s) == (False, RETRY_BASE_S)
    made.take(replace(waiting, wait_s=0.125), 0.1)
    assert (made.ended, made.retry_s) == (False, 0.125)
    made.take(replace(outcome(5), warning="mixed"), 0.1)
    assert (made.ended, made.result.state, made.result.warning) == (True, ResultState.UPDATED, "mixed")


def job(name: str, target: str, *reads: str, shared: bool = False, alone: bool = False) -> PlannedJob:
    return PlannedJob(name, "a", reads, target, f"jobs.yaml[{name}]", shared, alone)


def plan(*jobs: PlannedJob, fail_fast: bool = False) -> RunPlan:
    return RunPlan(jobs, range(len(jobs)), fail_fast)


def test_jobs_of_one_table_are_one_unit_and_others_go_beside_it() -> None:
    made = plan(job("a", "/a", "/t"), job("b", "/b", "/u"), job("c", "/c", "/t"))
    assert made.begin() == [(0, 2), (1,)]
    assert made.begin() == []


def test_a_job_that_reads_its_tables_itself_waits_for_no_other_of_its_table() -> None:
    view, more = job("v", "/v", "/t", alone=True), job("w", "/w", "/t", alone=True)
    assert plan(job("a", "/a", "/t"), view, job("c", "/c", "/t"), more).begin() == [(0, 2), (1,), (3,)]


def test_jobs_of_other_accounts_are_units_of_their_own() -> None:
    other = PlannedJob("b", "other", ("/t",), "/b", "")
    assert plan(job("a", "/a", "/t"), other).begin() == [(0,), (1,)]


def test_a_job_comes_after_all_that_make_its_tables() -> None:
    made = plan(job("joined", "/j", "/a", "/b"), job("a", "/a", "/t"), job("b", "/b", "/u"))
    assert made.begin() == [(1,), (2,)]
    assert made.end(1, failed=False) == []
    assert made.begin() == []
    made.end(2, failed=False)
    assert made.begin() == [(0,)]
    made.end(0, failed=False)
    assert made.over


def test_a_failure_skips_what_follows_from_it_and_nothing_else() -> None:
    made = plan(job("a", "/a", "/t"), job("b", "/b", "/a"), job("c", "/c", "/b"), job("d", "/d", "/t"))
    assert made.begin() == [(0, 3)]
    assert made.end(0, failed=True) == [1, 2]
    assert made.skipped[1] == "reads the target of 'a', which failed"
    assert made.skipped[2] == "reads the target of 'b', which was skipped"
    assert not made.over
    made.end(3, failed=False)
    assert made.over


def test_fail_fast_begins_nothing_after_a_failure() -> None:
    made = plan(job("a", "/a", "/t"), job("b", "/b", "/u"), job("c", "/c", "/b"), job("d", "/d", "/a"), fail_fast=True)
    assert made.begin() == [(0,), (1,)]
    assert made.end(0, failed=True) == [3, 2]
    assert made.skipped[2] == "'a' failed before its turn"
    made.end(1, failed=False)
    assert made.begin() == []
    assert made.over


def test_a_run_that_is_stopped_skips_what_was_not_begun() -> None:
    made = plan(job("a", "/a", "/t"), job("b", "/b", "/a"))
    made.begin()
    assert made.stop("the run was interrupted") == [1]
    made.end(0, failed=False)
    assert made.over


def test_jobs_that_are_not_chosen_are_waited_for_by_nobody() -> None:
    jobs = (job("a", "/a", "/t"), job("b", "/b", "/a"))
    made = RunPlan(jobs, {1})
    assert made.begin() == [(1,)]
    made.end(1, failed=False)
    assert made.over


def test_circles_and_doubled_targets_are_refused_by_their_places() -> None:
    with pytest.raises(InvalidRequest, match=r"jobs\.yaml\[.\] is in a circle: "):
        plan(job("a", "/a", "/c"), job("b", "/b", "/a"), job("c", "/c", "/b"))
    with pytest.raises(InvalidRequest, match=r"jobs\.yaml\[a\] has the table as its target that it reads, /a"):
        plan(job("a", "/a", "/a"))
    with pytest.raises(InvalidRequest, match=r"jobs\.yaml\[b\] has the target of 'a' at jobs\.yaml\[a\], /a"):
        plan(job("a", "/a", "/t"), job("b", "/a", "/u"))


def test_two_jobs_of_one_table_and_one_name_are_refused() -> None:
    first, second = job("a", "/a", "/t"), PlannedJob("a", "a", ("/t",), "/b", "more.yaml[1]")
    with pytest.raises(InvalidRequest, match=r"more\.yaml\[1\] has the name of the job at jobs\.yaml\[a\], 'a', on"):
        plan(first, second)
    plan(first, PlannedJob("a", "other", ("/t",), "/b", ""), PlannedJob("a", "a", ("/u",), "/c", ""))


def test_all_faults_of_a_plan_are_named_at_once() -> None:
    with pytest.raises(InvalidRequest) as refused:
        plan(
            job("a", "/a", "/t"),
            PlannedJob("a", "a", ("/t",), "/b", "more.yaml[1]"),
            job("c", "/a", "/u"),
            job("d", "/d", "/d"),
        )
    assert [each.field for each in (refused.value, *refused.value.others)] == [
        "more.yaml[1]",
        "jobs.yaml[c]",
        "jobs.yaml[d]",
    ]


def test_targets_that_are_shared_may_have_several_jobs_all_of_which_are_waited_for() -> None:
    made = plan(job("a", "/s", "/t", shared=True), job("b", "/s", "/u", shared=True), job("c", "/c", "/s"))
    assert made.begin() == [(0,), (1,)]
    made.end(0, failed=False)
    assert made.begin() == []
    made.end(1, failed=False)
    assert made.begin() == [(2,)]


def test_jobs_without_a_target_do_not_meet() -> None:
    assert plan(job("a", "", "/t"), job("b", "", "/t")).begin() == [(0, 1)]


@pytest.mark.parametrize("seed", range(40))
def test_each_job_of_random_runs_ends_once_after_what_it_reads(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randrange(1, 40)
    jobs = []
    for number in range(count):
        made = [f"/{each}" for each in range(number)]
        reads = draw.sample(made, min(len(made), draw.randrange(4))) or [f"/source-{draw.randrange(3)}"]
        jobs.append(job(str(number), f"/{number}", *reads))
    chosen = {number for number in range(count) if draw.random() < 0.8}
    run = RunPlan(jobs, chosen, fail_fast=draw.random() < 0.3)
    ended: dict[int, bool] = {}
    running: list[int] = []
    while not run.over:
        running += [number for unit in run.begin() for number in unit]
        assert running or run.over
        number = running.pop(draw.randrange(len(running)))
        upstream = [int(uri[1:]) for uri in jobs[number].reads if uri[1:].isdigit()]
        assert all(ended[each] for each in upstream if each in chosen)
        ok = draw.random() < 0.8
        ended[number] = ok
        for skipped in run.end(number, failed=not ok):
            assert skipped not in ended
            ended[skipped] = False
    assert set(ended) == chosen


def test_a_long_chain_is_skipped_at_once() -> None:
    jobs = [job(str(number), f"/{number}", f"/{number - 1}") for number in range(5_000)]
    made = plan(*jobs)
    made.begin()
    assert len(made.end(0, failed=True)) == 4_999


def test_tables_that_a_job_reads_on_several_ways_are_those_of_diamonds() -> None:
    diamond = [job("a", "/a", "/t"), job("b", "/b", "/t", "/u"), job("c", "/c", "/a", "/b")]
    assert plan(*diamond).tables_on_several_ways() == {"/t"}
    assert plan(*diamond[:2]).tables_on_several_ways() == set()
    assert plan(diamond[0], job("c", "/c", "/a", "/t")).tables_on_several_ways() == {"/t"}
    far = [job("top", "/top", "/a2", "/b2"), job("a2", "/a2", "/a"), job("b2", "/b2", "/b"), *diamond[:2]]
    assert plan(*far).tables_on_several_ways() == {"/t"}
    assert RunPlan(diamond, {0, 2}).tables_on_several_ways() == set(), "the target of b stays as it is"
    made = plan(*far)
    made.end(3, failed=False)
    assert made.tables_on_several_ways() == {"/t"}


JOBS = (NamedJob("sales.daily", {"nightly"}), NamedJob("sales.total"), NamedJob("stock", {"nightly", "slow"}))


@pytest.mark.parametrize(
    ("select", "exclude", "chosen"),
    [
        ((), (), [True, True, True]),
        (("sales.*",), (), [True, True, False]),
        (("sales.*", "stock"), (), [True, True, True]),
        ((), ("sales.total",), [True, False, True]),
        (("tag:nightly",), (), [True, False, True]),
        (("tag:night*",), ("tag:slow",), [True, False, False]),
        (("sales.*",), ("sales.*",), [False, False, False]),
    ],
)
def test_patterns_choose_names_and_tags(select: tuple[str, ...], exclude: tuple[str, ...], chosen: list[bool]) -> None:
    assert JobSelection(select, exclude).choose(JOBS) == chosen


@pytest.mark.parametrize("field", ["select", "exclude"])
def test_a_pattern_that_fits_nothing_is_refused(field: str) -> None:
    with pytest.raises(InvalidRequest, match=r"'Sales\.\*' fits no job") as refused:
        JobSelection(**{field: ("Sales.*",)}).choose(JOBS)
    assert refused.value.field == f"--{field}"


def test_patterns_are_bounded() -> None:
    with pytest.raises(InvalidRequest, match="more than"):
        JobSelection(("sales.*",) * (PATTERNS_MAX + 1)).choose(JOBS)
