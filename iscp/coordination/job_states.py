"""The states of a job, as its node reports it, and what changes them."""

from __future__ import annotations

from enum import Enum

from iscp.core.job.job_row import JobState
from iscp.core.values.state_table import StateTable


class JobEvent(Enum):
    """A `JobEvent` changes the state of a job that is reported. A person may change it too, in the job's row."""

    QUEUE = "iteration waits for long"
    START = "iteration runs for long"
    SUCCEED = "iteration succeeded"
    BUILD = "iteration waits for a build"
    FAIL = "iteration, source, trigger or target failed"
    INTERRUPT = "iteration canceled"
    RECOVER = "source or trigger answers again"
    TAKE_OVER = "taken over from another node"


# state diagram of JOB_STATES
#
#   any                           ── iteration waits for long ────────────────────▶  pending
#   any                           ── iteration runs for long ─────────────────────▶  running
#   any                           ── iteration succeeded ─────────────────────────▶  completed
#   any                           ── iteration waits for a build ─────────────────▶  pending
#   any                           ── iteration, source, trigger or target failed ─▶  error
#   pending | running             ── iteration canceled ──────────────────────────▶  canceled
#   any                           ── source or trigger answers again ─────────────▶  completed
#   pending | running | canceled  ── taken over from another node ────────────────▶  completed

JOB_STATES: StateTable[JobState, JobEvent] = StateTable(
    {
        JobEvent.QUEUE: dict.fromkeys(JobState, JobState.PENDING),
        JobEvent.START: dict.fromkeys(JobState, JobState.RUNNING),
        JobEvent.SUCCEED: dict.fromkeys(JobState, JobState.COMPLETED),
        JobEvent.BUILD: dict.fromkeys(JobState, JobState.PENDING),
        JobEvent.FAIL: dict.fromkeys(JobState, JobState.ERROR),
        JobEvent.INTERRUPT: dict.fromkeys((JobState.PENDING, JobState.RUNNING), JobState.CANCELED),
        JobEvent.RECOVER: dict.fromkeys(JobState, JobState.COMPLETED),
        JobEvent.TAKE_OVER: dict.fromkeys((JobState.PENDING, JobState.RUNNING, JobState.CANCELED), JobState.COMPLETED),
    }
)
