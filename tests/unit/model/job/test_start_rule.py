"""The start rule: which jobs start, which of them together, and up to which version.

What a trigger of the user's own may answer: a start, or a later time, and nothing else.

What Python's fault handler leaves of a crash, and whose work it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.job.job_row import JobRow, JobStatus
from iscp.model.job.start_rule import (
    ACCOUNT_DEATHS_S,
    ASK_AGAIN_S,
    AtWork,
    Candidate,
    Crash,
    Deaths,
    NotBefore,
    SharingGroup,
    Start,
    StartNow,
    TriggerFacts,
    counted_together,
    deaths_of_account,
    decide,
    parse_crash,
    run_spec,
    sharing_group,
    suspects,
    wait_of,
)
from iscp.model.spec.spec import ConsumerSpec, JobSpec, TriggerSpec, TriggerType
from iscp.model.values.errors import ErrorCode, TemporaryError
from iscp.model.values.ids import JobKey

ALONE: dict[str, Any] = {"group": SharingGroup.NONE}
PERIOD: dict[str, Any] = {"group": SharingGroup.PERIOD}


def job(watermark: int = -1, **facts: Any) -> Candidate:
    return Candidate(account="a", watermark=watermark, **facts)


def test_a_new_job_starts_at_once_from_nothing_to_now() -> None:
    assert decide([job()], newest=None) == [Start((0,), None)]


def test_a_new_job_goes_to_the_others_watermark_and_they_do_not_wait_for_it() -> None:
    assert decide([job(7), job(), job(7)], newest=9) == [Start((1,), 7), Start((0, 2), None)]
    assert decide([job(7), job(busy=True)], newest=9) == [Start((0,), None)]


def test_jobs_that_agree_share_one_iteration_when_the_source_is_ahead() -> None:
    assert decide([job(3), job(3)], newest=4) == [Start((0, 1), None)]
    assert decide([job(3), job(3)], newest=3) == []
    assert decide([job(3), job(3)], newest=None) == []


def test_nothing_starts_while_one_of_them_runs() -> None:
    assert decide([job(3), job(3, busy=True)], newest=4) == []


def test_jobs_that_lag_catch_up_one_at_a_time_to_the_highest() -> None:
    assert decide([job(5), job(2), job(3)], newest=5) == [Start((2,), 5)]
    assert decide([job(5), job(2), job(3, busy=True)], newest=5) == []


def test_leaders_wait_for_one_that_is_near_but_not_for_one_that_is_far() -> None:
    assert decide([job(5), job(2)], newest=6) == [Start((1,), 5), Start((0,), None)]
    assert decide([job(5), job(4, near=True)], newest=6) == [Start((1,), 5)]
    assert decide([job(5), job(4, near=True, busy=True)], newest=6) == []


def test_one_that_is_near_does_not_queue_behind_one_that_is_far() -> None:
    assert decide([job(5), job(0, busy=True), job(4, near=True)], newest=6) == [Start((2,), 5)]


def test_a_failing_job_is_retried_alone_and_holds_up_nobody() -> None:
    assert decide([job(5), job(5), job(4, failing=True)], newest=6) == [Start((2,), 5), Start((0, 1), None)]
    assert decide([job(5), job(5, failing=True, busy=True)], newest=6) == [Start((0,), None)]
    assert decide([job(5, failing=True)], newest=5) == [Start((0,), None)], "retried, though nothing is outstanding"


def test_a_failing_job_at_the_top_is_no_goal_for_the_others() -> None:
    assert decide([job(3), job(9, failing=True, busy=True)], newest=9) == [Start((0,), None)]


def test_accounts_share_nothing() -> None:
    other = replace(job(5), account="b")
    assert decide([job(5), other], newest=6) == [Start((0,), None), Start((1,), None)]
    assert decide([job(2), other], newest=5) == [Start((0,), None)]
    assert decide([job(), other], newest=5) == [Start((0,), None)], "nor is the other's watermark a goal"


def test_a_source_recreated_is_read_though_the_versions_agree() -> None:
    assert decide([job(5, stale=True), job(5)], newest=5) == [Start((0, 1), None)]
    assert decide([job(5, stale=True)], newest=2) == [Start((0,), None)]


def test_one_that_goes_alone_starts_whenever_the_source_is_ahead_whatever_the_others_do() -> None:
    assert decide([job(5), job(5, **ALONE)], newest=6) == [Start((0,), None), Start((1,), None)]
    assert decide([job(5, busy=True), job(2, **ALONE), job(4, **ALONE)], newest=6) == [
        Start((1,), None),
        Start((2,), None),
    ]
    assert decide([job(6, **ALONE), job(6, busy=True, stale=True, **ALONE)], newest=6) == []
    assert decide([job(5, **ALONE)], newest=None) == []
    assert decide([job(6, stale=True, **ALONE)], newest=6) == [Start((0,), None)]


def test_nobody_waits_for_one_that_goes_alone_or_goes_to_its_watermark() -> None:
    assert decide([job(5), job(4, near=True, **ALONE)], newest=5) == [Start((1,), None)]
    assert decide([job(5), job(4, near=True, busy=True, **ALONE)], newest=6) == [Start((0,), None)]
    assert decide([job(5), job(9, **ALONE)], newest=9) == [Start((0,), None)]
    assert decide([job(), job(9, **ALONE)], newest=9) == [Start((0,), None)], "no goal for a new job"
    assert decide([job(5), job(**ALONE)], newest=5) == [Start((1,), None)], "nor has a new one that of the others"


def test_what_its_trigger_holds_back_is_not_started_but_for_a_first_iteration_and_a_retry() -> None:
    assert decide([job(5, waits=True, **ALONE)], newest=6) == []
    assert decide([job(5, waits=True, stale=True, **ALONE)], newest=6) == []
    assert decide([job(waits=True, **ALONE)], newest=6) == [Start((0,), None)]
    assert decide([job(5, waits=True, failing=True, **ALONE)], newest=6) == [Start((0,), None)]


def test_periodic_ones_that_share_go_together_where_they_are_due_and_at_one_watermark() -> None:
    assert decide([job(5, **PERIOD), job(5, **PERIOD), job(4, **PERIOD)], newest=6) == [
        Start((0, 1), None),
        Start((2,), None),
    ]
    assert decide([job(5, **PERIOD), job(5, waits=True, **PERIOD), job(5)], newest=6) == [
        Start((2,), None),
        Start((0,), None),
    ]
    other = replace(job(5, **PERIOD), account="b")
    assert decide([job(5, **PERIOD), other], newest=6) == [Start((0,), None), Start((1,), None)]
    assert decide([job(5, **PERIOD), job(5, failing=True, **PERIOD), job(**PERIOD)], newest=6) == [
        Start((1,), None),
        Start((2,), None),
        Start((0,), None),
    ]


def test_whom_a_job_goes_with_is_read_from_its_spec() -> None:
    def group_for(**spec: Any) -> SharingGroup:
        return sharing_group(run_spec(JobSpec(ConsumerSpec("replica", "/x"), **spec).to_json()))

    assert group_for() is group_for(target_lag_s=5.0) is group_for(priority=5) is SharingGroup.TABLE
    assert group_for(independent=True) is group_for(trigger=TriggerSpec(TriggerType.GREEDY)) is SharingGroup.NONE
    assert group_for(trigger=TriggerSpec(TriggerType.CUSTOM, name="x")) is SharingGroup.NONE
    assert group_for(trigger=TriggerSpec(TriggerType.PERIODIC, 5.0)) is SharingGroup.NONE
    assert group_for(trigger=TriggerSpec(TriggerType.PERIODIC, 5.0, share=True)) is SharingGroup.PERIOD
    assert run_spec(JobSpec(ConsumerSpec("replica", "/x"), priority=5).to_json()) is None


CANDIDATES = st.lists(
    st.builds(
        Candidate,
        account=st.sampled_from("ab"),
        watermark=st.integers(-1, 4),
        busy=st.booleans(),
        failing=st.booleans(),
        near=st.booleans(),
        stale=st.booleans(),
        group=st.sampled_from(SharingGroup),
        waits=st.booleans(),
    ),
    max_size=8,
)


@given(jobs=CANDIDATES, newest=st.none() | st.integers(0, 5))
def test_what_holds_for_every_decision(jobs: list[Candidate], newest: int | None) -> None:
    starts = decide(jobs, newest)
    started = [index for start in starts for index in start.jobs]
    assert len(started) == len(set(started)), "no job is in two iterations"
    for start in starts:
        members = [jobs[index] for index in start.jobs]
        assert not any(member.busy for member in members)
        assert len({member.account for member in members}) == 1
        assert len({member.watermark for member in members}) == 1
        (group,) = {member.group for member in members}
        assert group is not SharingGroup.NONE or len(members) == 1
        assert not any(
            member.waits and member.built and not member.failing
            for member in members
            if group is not SharingGroup.TABLE
        )
        assert start.to_version is None or start.to_version > members[0].watermark
        if len(members) > 1:
            assert not any(member.failing or not member.built for member in members)


@given(jobs=CANDIDATES, newest=st.none() | st.integers(0, 5))
def test_a_failing_job_changes_nothing_for_the_others(jobs: list[Candidate], newest: int | None) -> None:
    without = [candidate for candidate in jobs if not candidate.failing]
    places = [index for index, candidate in enumerate(jobs) if not candidate.failing]
    expected = {(tuple(places[i] for i in start.jobs), start.to_version) for start in decide(without, newest)}
    alone = {index for index, candidate in enumerate(jobs) if candidate.failing}
    found = {(s.jobs, s.to_version) for s in decide(jobs, newest) if not alone & set(s.jobs)}
    assert found == expected


@given(jobs=CANDIDATES, newest=st.none() | st.integers(0, 5))
def test_a_tables_group_and_the_others_change_nothing_for_each_other(jobs: list[Candidate], newest: int | None) -> None:
    def starts(places: list[int]) -> set[tuple[tuple[int, ...], int | None]]:
        found = decide([jobs[place] for place in places], newest)
        return {(tuple(places[i] for i in start.jobs), start.to_version) for start in found}

    table = [index for index, candidate in enumerate(jobs) if candidate.group is SharingGroup.TABLE]
    others = [index for index, candidate in enumerate(jobs) if candidate.group is not SharingGroup.TABLE]
    assert starts(list(range(len(jobs)))) == starts(table) | starts(others)


@given(jobs=CANDIDATES, newest=st.integers(0, 5))
def test_somebody_runs_as_long_as_somebody_has_work(jobs: list[Candidate], newest: int) -> None:
    """Liveness: with nobody busy, decisions carried out bring every job to the newest version, and then all rest."""
    state = [replace(candidate, busy=False, waits=False) for candidate in jobs]
    for _ in range(100):
        starts = decide(state, newest)
        if not starts:
            break
        for start in starts:
            goal = (
                max(newest, *(state[i].watermark for i in start.jobs)) if start.to_version is None else start.to_version
            )
            for index in start.jobs:
                state[index] = replace(state[index], watermark=goal, failing=False, near=True, stale=False)
    assert all(candidate.watermark >= newest for candidate in state)
    assert decide(state, newest) == []


FACTS = TriggerFacts("a", "t", "x", 3, 30.0, 5, 1_000.0, 900.0, 910.0, {})


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [(StartNow(), 0.0), (NotBefore(1_060), 60.0), (NotBefore(1_000.000_1), ASK_AGAIN_S), (NotBefore(1e300), 1e300)],
)
def test_a_start_or_a_later_time_is_taken(answer: object, wait_s: float) -> None:
    assert wait_of(answer, FACTS) == wait_s


@pytest.mark.parametrize(
    "answer",
    [
        *(None, True, 5.0, "now", StartNow, NotBefore),
        *(NotBefore(at_s) for at_s in (1_000.0, 999.0, -1, float("nan"), float("inf"))),
    ],
)
def test_anything_else_is_a_fault_that_shows_what_was_answered(answer: Any) -> None:
    with pytest.raises(TemporaryError, match="answered") as refused:
        wait_of(answer, FACTS)
    assert refused.value.code is ErrorCode.TRIGGER_FAILED


@pytest.mark.parametrize("at_s", [None, True, "1060", [1_060]])
def test_a_time_has_to_be_a_number(at_s: Any) -> None:
    with pytest.raises(TemporaryError, match="which is no time"):
        wait_of(NotBefore(at_s), FACTS)


OF_THREAD = """Fatal Python error: Aborted

Thread 0x00007f11c9ffb6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/threading.py", line 995 in _bootstrap

Current thread 0x00007f11ca7fc6c0 (most recent call first):
  File "/site/deltalake/table.py", line 2090 in execute
  File "/site/iscp/delta/sink/arrow_write.py", line 70 in merge

Thread 0x00007f11d0000000 (most recent call first):
  File "/site/iscp/app/run.py", line 61 in run_node

Extension modules: pyarrow.lib (total: 1)
"""
OF_LIBRARY = "Fatal Python error: Segmentation fault\n\nThread 0x00007f11c9ffb6c0 (most recent call first):\n  File x\n"
OF_POOL = """Fatal Python error: Bus error

Current thread 0x00000000000000ff [iscp-row-search] (most recent call first):
  File "/site/pyarrow/parquet/core.py", line 5 in read
  File "/usr/lib/python3.11/concurrent/futures/thread.py", line 58 in run
"""
OF_CALL = OF_POOL + '  File "/site/grpc/_server.py", line 552 in _call_behavior\n'
ORDERS = AtWork(0x7F11CA7FC6C0, "/lake/orders", {"j1": ("acme", "copy"), "j2": ("acme", "view")})
OTHERS = AtWork(0x7F11C9FFB6C0, "/lake/others", {"j3": ("other", "copy")})


def test_a_crash_is_that_of_the_thread_that_it_was_in() -> None:
    crash = parse_crash(OF_THREAD)
    assert crash is not None
    assert (crash.signal, crash.thread, crash.helps) == ("Aborted", ORDERS.thread, False)
    assert crash.stack.splitlines()[-1].strip().startswith('File "/site/iscp/delta/sink/arrow_write.py"')
    assert suspects(crash, [ORDERS, OTHERS]) == [ORDERS]


@pytest.mark.parametrize("dump", [OF_LIBRARY, OF_POOL, "Fatal Python error: Aborted"])
def test_of_a_thread_that_works_for_any_of_them_all_are_suspected(dump: str) -> None:
    crash = parse_crash(dump)
    assert crash is not None
    assert suspects(crash, [ORDERS, OTHERS]) == [ORDERS, OTHERS]


@pytest.mark.parametrize("dump", [OF_THREAD.replace("7f11ca7fc6c0", "7f11d1111111"), OF_CALL])
def test_of_a_thread_that_works_for_no_job_none_is(dump: str) -> None:
    crash = parse_crash(dump)
    assert crash is not None
    assert suspects(crash, [ORDERS, OTHERS]) == []


@pytest.mark.parametrize("dump", ["", "\n", "Killed", "Thread 0x1 (most recent call first):\n"])
def test_what_is_no_crash_leaves_nothing(dump: str) -> None:
    assert parse_crash(dump) is None


def test_two_in_a_row_are_too_many() -> None:
    assert [Deaths(count).too_many for count in (0, 1, 2, 3)] == [False, False, True, True]
    said = Deaths(2, 1_700_000_000.0, "Aborted").described
    assert said == "2 times in a row, the last time at 2023-11-14T22:13:20+00:00 (Aborted)"
    assert Crash("Aborted").thread is None


def row(error_code: int, end_at_s: float) -> JobRow:
    status = JobStatus(end_at_s=end_at_s, error_code=error_code)
    return JobRow(JobKey("acme", "t1", "j"), "j", "{}", "/lake/t1", "/lake/t1", status_json=status.to_json())


def test_deaths_at_other_nodes_count_unless_the_job_has_run_well_since_or_was_forgiven() -> None:
    own, elsewhere = Deaths(1, 5.0, "Aborted"), [Deaths(1, 7.0, "Bus error", kills=2), Deaths(forgiven_at_s=9.0)]
    together = counted_together(row(ErrorCode.STORAGE, 8.0), own, elsewhere)
    assert together == Deaths(2, 7.0, "Bus error", kills=2)
    assert counted_together(row(ErrorCode.OK, 6.0), own, elsewhere) == together
    assert counted_together(row(ErrorCode.OK, 8.0), own, elsewhere) == own
    forgiven = Deaths(forgiven_at_s=8.0)
    assert counted_together(row(ErrorCode.NODE_KILLED, 8.0), forgiven, elsewhere) == forgiven
    assert counted_together(row(ErrorCode.NODE_KILLED, 8.0), Deaths(forgiven_at_s=6.0), elsewhere).count == 1


def test_a_death_counts_once_for_an_account_for_a_day_and_a_single_kill_not_at_all() -> None:
    now_s = 2 * ACCOUNT_DEATHS_S
    known = [
        Deaths(1, now_s - 1.0, "Aborted", account="acme"),
        Deaths(2, now_s - 1.0, "Aborted", account="acme"),  # another job that was at work then
        Deaths(1, now_s - 2.0, "Aborted", account="acme"),
        Deaths(1, now_s - 3.0, "Aborted", account="other"),
        Deaths(0, now_s - 4.0, "Killed", kills=1, account="acme"),
        Deaths(0, now_s - 5.0, "Killed", kills=2, account="acme"),
        Deaths(2, now_s - ACCOUNT_DEATHS_S, "Aborted", account="acme"),
    ]
    assert [deaths_of_account(account, known, now_s) for account in ("acme", "other", "third")] == [3, 1, 0]
