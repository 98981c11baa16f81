"""Proves that a run begins each job once, after what it reads, and skips only what a failure concerns.

Proves which jobs patterns choose, and that a pattern for nothing is refused.
"""

from __future__ import annotations

import random

import pytest

from iscp.model.run.run_plan import PATTERNS_MAX, JobSelection, NamedJob, PlannedJob, RunPlan
from iscp.model.values.errors import InvalidRequest


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
