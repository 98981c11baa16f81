"""Which notifications a change of a job leads to, by examples and by random histories.

What waits for a receiver: its order, its bound, and when what failed is sent again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.api.api_requests import JobView
from iscp.model.job.job_row import JobState, JobStatus, Notification, NotificationKind, Origin, Reason
from iscp.notices.notifications import (
    CONDITIONS,
    DROPPED,
    REFUSALS_MAX,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    WAITING_MAX,
    DeliveryQueue,
    JobAlerts,
)

NOW_S = 1_000.0
WELL = JobView(
    account="a",
    table_id="t-1",
    table="sales",
    name="copy",
    job_id="id-1",
    spec_json="{}",
    state=JobState.COMPLETED,
    reason=Reason.NONE,
    applied_version=3,
    applied_at_s=900.0,
    source_version=3,
    checked_at_s=990.0,
    lag_s=0.0,
    seq=4,
    status=JobStatus(end_at_s=900.0),
    create_at_s=1.0,
    node_id="n-1",
)
FAILED = replace(WELL, state=JobState.ERROR, status=JobStatus(error_code=10_005, error_msg="a column", end_at_s=950.0))
RETRYING = replace(WELL, state=JobState.ERROR, reason=Reason.RETRYING, status=JobStatus(error_code=5, end_at_s=950.0))
QUARANTINED = replace(RETRYING, reason=Reason.QUARANTINED)
LATE = replace(WELL, late=True, lag_s=90.0, source_version=5)
RUNNING = replace(WELL, state=JobState.RUNNING)
RESUMED = replace(FAILED, state=JobState.COMPLETED)  # a person has resumed it, and it has not run yet


def alerts(owner_rev: int = 7, late_after_s: float = 0.0) -> JobAlerts:
    return JobAlerts(Origin("c", "n-1", owner_rev), late_after_s)


def said(machine: JobAlerts, *views: JobView) -> list[str]:
    """The kinds that each view in turn leads to, with what a recovery is from."""
    found = []
    for view in views:
        notifications = machine.observe(view.table_id, [view], NOW_S)
        found += [f"-{each.recovered_from}" if each.recovered_from else each.kind.value for each in notifications]
    return found


@pytest.mark.parametrize(("view", "kind"), [(FAILED, "failed"), (QUARANTINED, "quarantined"), (LATE, "late")])
def test_a_condition_is_said_once_and_its_end_too(view: JobView, kind: str) -> None:
    assert said(alerts(), WELL, view, view, WELL, WELL, view) == [kind, f"-{kind}", kind]


def test_a_temporary_error_and_a_job_that_runs_are_nothing_to_report() -> None:
    assert said(alerts(), WELL, RETRYING, RUNNING, RETRYING, WELL) == []


def test_only_success_ends_a_failure() -> None:
    assert said(alerts(), FAILED, RESUMED, RUNNING, RETRYING, QUARANTINED, FAILED) == ["failed", "quarantined"]
    assert said(alerts(), FAILED, RESUMED, RUNNING, WELL) == ["failed", "-failed"]


def test_a_pause_neither_opens_nor_closes() -> None:
    assert said(alerts(), replace(LATE, reason=Reason.PAUSED)) == []
    assert said(alerts(), LATE, replace(WELL, reason=Reason.PAUSED), LATE, WELL) == ["late", "-late"]


def test_an_unknown_lag_is_neither_late_nor_not() -> None:
    assert said(alerts(), LATE, replace(WELL, lag_s=-1.0), LATE) == ["late"]


def test_the_configured_bound_counts_beside_the_target_lag_and_an_unbuilt_job_is_as_old_as_it_is() -> None:
    slow = replace(WELL, lag_s=61.0)
    assert said(alerts(), slow) == []
    assert said(alerts(late_after_s=60.0), slow, replace(slow, lag_s=60.0)) == ["late", "-late"]
    unbuilt = replace(WELL, applied_version=-1, lag_s=-1.0, create_at_s=NOW_S - 61.0, state=JobState.RUNNING)
    assert said(alerts(late_after_s=60.0), unbuilt) == ["late"]
    assert said(alerts(late_after_s=62.0), unbuilt) == []


def test_what_is_open_of_a_job_that_is_gone_is_closed() -> None:
    machine = alerts()
    opened = machine.observe("t-1", [replace(FAILED, late=True)], NOW_S)
    closed = machine.observe("t-1", [replace(WELL, job_id="id-2")], NOW_S)
    assert [each.recovered_from for each in closed] == ["late", "failed"]
    assert [each.alert_id for each in closed] == [each.id for each in opened]
    assert {each.state for each in closed} == {DROPPED}
    assert machine.observe("t-1", [], NOW_S) == []


def test_a_notification_says_what_the_job_is_like() -> None:
    (found,) = alerts().observe("t-1", [FAILED], NOW_S)
    assert (found.account, found.table, found.table_id, found.job, found.job_id) == (
        "a",
        "sales",
        "t-1",
        "copy",
        "id-1",
    )
    assert (found.state, found.error_code, found.error_message) == ("error", 10_005, "a column")
    assert (found.cluster, found.owner, found.owner_rev, found.at_s) == ("c", "n-1", 7, NOW_S)
    assert found.alert_id == found.id


def test_the_next_owner_repeats_what_is_open_under_the_same_id() -> None:
    for view in (FAILED, QUARANTINED, LATE):
        (one,) = alerts(7).observe("t-1", [view], NOW_S)
        (other,) = alerts(8).observe("t-1", [view], NOW_S + 60.0)
        assert one.id == other.id
    assert alerts(7).begin(NOW_S).id != alerts(8).begin(NOW_S).id


def test_two_failures_at_one_position_have_two_ids() -> None:
    machine = alerts()
    first, end, again = (machine.observe("t-1", [view], NOW_S)[0] for view in (FAILED, WELL, FAILED))
    assert len({first.id, end.id, again.id}) == 3


STATES = st.builds(
    lambda state, reason, code, late, lag_s, seq: replace(
        WELL,
        state=state,
        reason=reason,
        status=JobStatus(error_code=code, end_at_s=float(seq)),
        late=late,
        lag_s=lag_s,
        seq=seq,
    ),
    st.sampled_from(JobState),
    st.sampled_from(Reason),
    st.sampled_from([0, 5, 10_005]),
    st.booleans(),
    st.sampled_from([-1.0, 0.0, 50.0, 100.0]),
    st.integers(0, 2),
)
HISTORIES = st.lists(st.lists(st.tuples(st.sampled_from(["id-1", "id-2"]), STATES), max_size=2), max_size=30)


@given(HISTORIES, st.sampled_from([0.0, 70.0]))
def test_opening_and_closing_alternate_and_ids_are_distinct(
    history: list[list[tuple[str, JobView]]], late_after_s: float
) -> None:
    machine, spoken, gone = alerts(late_after_s=late_after_s), list[Notification](), Counter[str]()
    for moment, jobs in enumerate(history):
        present = {job_id for job_id, _ in jobs}
        gone.update({"id-1", "id-2"} - present)  # one that is registered again has another id
        views = {job_id: replace(view, job_id=f"{job_id}.{gone[job_id]}") for job_id, view in jobs}
        before = list(spoken)
        spoken += machine.observe("t-1", list(views.values()), NOW_S + moment)
        assert machine.observe("t-1", list(views.values()), NOW_S + moment) == []  # the same again changes nothing
        assert spoken[: len(before)] == before
    assert len({each.id for each in spoken}) == len(spoken)
    by_condition: dict[tuple[str, str], list[Notification]] = defaultdict(list)
    for each in spoken:
        by_condition[each.job_id, each.recovered_from or each.kind.value].append(each)
    for of_one in by_condition.values():
        opening, closing = of_one[::2], of_one[1::2]
        assert all(each.kind in CONDITIONS for each in opening)
        assert all(each.kind is NotificationKind.RECOVERED for each in closing)
        assert [each.alert_id for each in closing] == [each.id for each in opening[: len(closing)]]


@given(HISTORIES)
def test_at_the_end_of_a_history_all_is_closed_by_success(history: list[list[tuple[str, JobView]]]) -> None:
    machine, open_ids = alerts(), set[str]()
    views: dict[str, JobView] = {}
    for jobs in history:
        views = {job_id: replace(view, job_id=job_id) for job_id, view in jobs}
        for each in machine.observe("t-1", list(views.values()), NOW_S):
            (open_ids.discard if each.recovered_from else open_ids.add)(each.alert_id)
    well = [replace(WELL, job_id=job_id) for job_id in views]
    for each in machine.observe("t-1", well, NOW_S):
        open_ids.discard(each.alert_id)
    assert open_ids == set()


def notification(number: int) -> Notification:
    return Notification(
        kind=NotificationKind.LATE, id=f"i-{number}", at_s=0.0, cluster="c", owner="n", owner_rev=1, job=f"j-{number}"
    )


ONE, TWO = notification(1), notification(2)


def test_they_are_sent_in_order_each_once_the_one_before_is_accepted() -> None:
    queue = DeliveryQueue()
    assert queue.next(0.0) is None
    assert queue.pause_s(0.0) is None
    queue.add(ONE)
    queue.add(TWO)
    assert queue.next(0.0) is ONE
    queue.accept(ONE)
    assert queue.next(0.0) is TWO
    queue.accept(TWO)
    assert queue.next(0.0) is None


def test_one_too_many_drops_the_oldest() -> None:
    queue = DeliveryQueue()
    assert [queue.add(notification(n)) for n in range(WAITING_MAX)] == [None] * WAITING_MAX
    dropped = queue.add(TWO)
    assert dropped is not None
    assert dropped.id == "i-0"
    assert len(queue) == WAITING_MAX
    queue.accept(dropped)  # it was under way: what is first now was not
    assert len(queue) == WAITING_MAX
    assert not queue.fail(dropped, refused=True, now_s=0.0, draw=0.0)
    assert len(queue) == WAITING_MAX


def test_pauses_double_up_to_the_longest_and_a_success_ends_them() -> None:
    queue, now_s, pauses = DeliveryQueue(), 0.0, []
    queue.add(ONE)
    for _ in range(12):
        assert queue.next(now_s) is ONE
        assert not queue.fail(ONE, refused=False, now_s=now_s, draw=0.0)
        assert queue.next(now_s) is None
        pauses.append(queue.pause_s(now_s))
        now_s += pauses[-1] or 0.0
    assert pauses[:4] == [RETRY_FIRST_S, 2 * RETRY_FIRST_S, 4 * RETRY_FIRST_S, 8 * RETRY_FIRST_S]
    assert pauses[-1] == RETRY_MAX_S
    queue.add(TWO)
    queue.accept(ONE)
    assert queue.next(now_s) is TWO


def test_a_receiver_that_fails_is_retried_without_end_and_one_that_refuses_is_not() -> None:
    queue = DeliveryQueue()
    queue.add(ONE)
    queue.add(TWO)
    assert not any(queue.fail(ONE, refused=False, now_s=0.0, draw=0.5) for _ in range(1_000))
    given_up = [queue.fail(ONE, refused=True, now_s=0.0, draw=0.5) for _ in range(REFUSALS_MAX)]
    assert given_up == [False] * (REFUSALS_MAX - 1) + [True]
    assert queue.next(RETRY_MAX_S) is TWO


def test_what_is_cleared_is_counted_and_what_comes_then_does_not_wait() -> None:
    queue = DeliveryQueue()
    queue.add(ONE)
    queue.add(TWO)
    queue.fail(ONE, refused=False, now_s=0.0, draw=0.0)
    assert queue.clear() == 2
    queue.add(TWO)
    assert queue.next(0.0) is TWO
