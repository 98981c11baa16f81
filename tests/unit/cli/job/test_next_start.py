"""A job's next start, as it is shown, equals what the schedule does in that state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iscp.cli.job.next_start import next_start, warnings_of
from iscp.core.api.api_views import JobView
from iscp.core.job.job_row import Deletion, JobState, JobStatus, Reason

JOBS = ("/t", "a"), ("/t", "b"), ("/u", "c")

NOW_S = 1_000_000.0
ENDED_S = 999_900.0


ENDING = JobStatus(deletion=Deletion.WANTED)


def a_job(trigger: dict[str, Any] | None = None, **fields: Any) -> JobView:
    spec = {"iteration": {"consumer": {"kind": "replica", "target": "/copy"}}}
    given: dict[str, Any] = {
        "account": "default",
        "table_id": "t-1",
        "table": "/t",
        "name": "a",
        "job_id": "j",
        "spec_json": json.dumps(spec | ({"trigger": trigger} if trigger else {})),
        "state": JobState.COMPLETED,
        "reason": Reason.NONE,
        "applied_version": 7,
        "applied_at_s": ENDED_S,
        "source_version": 7,
        "checked_at_s": NOW_S,
        "lag_s": 0.0,
        "seq": 1,
        "status": JobStatus(end_at_s=ENDED_S),
        "create_at_s": 0.0,
        "node_id": "n-1",
    }
    return JobView(**given | fields)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (a_job(reason=Reason.PAUSED, state=JobState.ERROR), "not before `iscp-admin job resume`: the job is paused"),
        (a_job(reason=Reason.PAUSED, status=ENDING), "its target is being deleted"),
        (a_job(reason=Reason.PAUSED, status=ENDING, state=JobState.ERROR), "its target was not deleted"),
        (a_job(state=JobState.RUNNING), "an iteration is running"),
        (a_job(state=JobState.PENDING), "an iteration is queued"),
        (a_job(state=JobState.PENDING, reason=Reason.BUILDING), "when the ranges of its first snapshot are built"),
        (a_job(state=JobState.ERROR, status=JobStatus(error_code=10_001)), "the error is permanent"),
        (a_job(state=JobState.ERROR, reason=Reason.QUARANTINED), "backoff.quarantine_s"),
        (a_job(state=JobState.ERROR, reason=Reason.RETRYING), "a retry with growing pauses"),
        (
            a_job(reason=Reason.RETRYING, status=JobStatus(failures=3, retry_at_s=NOW_S + 12)),
            "(in 12.0 s), after 3 failures in a row; `iscp-admin job resume` retries now",
        ),
        (
            a_job(reason=Reason.QUARANTINED, status=JobStatus(failures=1, retry_at_s=NOW_S - 1)),
            "due now, after 1 failure; ",
        ),
        (a_job(node_id=""), "when a node has been given the table"),
        (a_job(applied_version=-1), "at once: the first iteration"),
        (a_job(), "at the source's next commit after 7, together with"),
        (a_job(source_version=8), "now, as the source is ahead, together with"),
        (a_job({"job_type": "greedy"}), "of its own (trigger greedy)"),
        (a_job({"job_type": "custom", "name": "nightly"}), "when the trigger 'nightly' says so"),
        (
            a_job(status=JobStatus(waits_for="b (of t)", waits_until_s=NOW_S + 5), source_version=8),
            "at 1970-01-12 13:46:45Z at the latest; it waits for b (of t)",
        ),
        (a_job(status=JobStatus(due_at_s=NOW_S + 60)), "; and at 1970-01-12 13:47:40Z as time passes"),
        (a_job(status=JobStatus(due_at_s=NOW_S - 60)), "; and as time passes, on which its rows depend"),
    ],
)
def test_each_state_and_trigger_has_its_sentence(job: JobView, words: str) -> None:
    assert words in next_start(job, NOW_S)


@pytest.mark.parametrize(
    ("schedule", "source_version", "words"),
    [
        ({"interval": 600}, 8, "at 1970-01-12 13:55:00Z (trigger periodic, every 600.0 s)"),
        ({"interval": 600}, 7, "not before 1970-01-12 13:55:00Z"),
        ({"interval": 60}, 8, "now (trigger periodic"),
        ({"cron": "0 0 18 * * ?", "time_zone": "Asia/Tokyo"}, 8, "at 1970-01-13 09:00:00Z (trigger periodic, by cron"),
        ({"cron": "0 0 18 * * ?"}, 7, "at 1970-01-12 18:00:00Z, if the source is ahead by then"),
        ({"interval": 60}, 7, "at the source's next commit"),
        ({"interval": 600, "share": True}, 8, "at 1970-01-12 13:50:00Z (trigger periodic, every 600.0 s, together"),
    ],
)
def test_a_period_counts_from_the_last_iteration_or_goes_by_the_clock(
    schedule: dict[str, Any], source_version: int, words: str
) -> None:
    job = a_job({"job_type": "periodic", "schedule": schedule}, source_version=source_version)
    assert words in next_start(job, NOW_S)


def test_a_doubtful_target_is_warned_of() -> None:
    assert warnings_of(a_job(), []) == []
    (warning,) = warnings_of(a_job(status=JobStatus(doubted_at_s=ENDED_S)), [])
    assert warning.startswith("whether the target holds what was applied to it is not known since 1970-01-12")
