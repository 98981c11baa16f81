"""Metrics of jobs, which the owner emits: how many there are, and how far those that lag most are behind."""

from __future__ import annotations

from iscp.model.metrics.metric import ACCOUNT, JOB, KIND, SECONDS, TABLE, Attribute, DeclaredMetric, owner_gauge

STATE = Attribute("iscp.job.state", "The state of the job: `pending`, `running`, `canceled`, `error` or `completed`")
REASON = Attribute(
    "iscp.job.reason", "Why it is so: `none`, `retrying`, `paused`, `quarantined`, `quota` or `building`"
)

JOBS = owner_gauge("iscp.job.count", "{job}", "Jobs", STATE, REASON)
LAG_MAX = owner_gauge("iscp.job.lag.max", SECONDS, "Lag of the job that lags most, at most; absent if none is known")
LAG = owner_gauge(
    "iscp.job.lag",
    SECONDS,
    "Lag, at most, behind the job's own sources, of the jobs that lag most",
    ACCOUNT,
    TABLE,
    JOB,
    KIND,
)
LAG_GLOBAL = owner_gauge(
    "iscp.job.lag.global",
    SECONDS,
    "Lag behind the first tables on the way to the job: its own, and that of the jobs that make its sources",
    ACCOUNT,
    TABLE,
    JOB,
    KIND,
)
LAG_GLOBAL_REST = owner_gauge("iscp.job.lag.global.rest", SECONDS, "Sum of these lags of all jobs that are not named")
LAG_REST = owner_gauge("iscp.job.lag.rest", SECONDS, "Sum of the lags of all jobs that are not named")
VERSIONS = owner_gauge(
    "iscp.job.lag.versions",
    "{version}",
    "Versions of the source that the job has not applied, of the same jobs",
    ACCOUNT,
    TABLE,
    JOB,
    KIND,
)
VERSIONS_REST = owner_gauge(
    "iscp.job.lag.versions.rest",
    "{version}",
    "Sum of the versions of all jobs that are not named",
)
UNNAMED = owner_gauge("iscp.job.unnamed", "{job}", "Jobs beyond `metrics.per_job_max`, which are in sums alone")
LATE = owner_gauge("iscp.job.late", "{job}", "Jobs that lag by more than their target lag")

METRICS: tuple[DeclaredMetric, ...] = (
    JOBS,
    LAG_MAX,
    LAG,
    LAG_REST,
    LAG_GLOBAL,
    LAG_GLOBAL_REST,
    VERSIONS,
    VERSIONS_REST,
    UNNAMED,
    LATE,
)
