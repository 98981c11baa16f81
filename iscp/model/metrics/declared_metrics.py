"""All metrics that a node may emit, concept by concept: each with its name and unit, how it is counted, and by what it
is split. The name of a metric begins with that of its concept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

# --- declarations -----------------------------------------------------------------------------------------------------
# Names and units follow the style of OpenTelemetry's semantic conventions; Prometheus sees them as `prometheus_name`
# says, which is what OpenTelemetry's exporter makes of them.

SECONDS = "s"
BYTES = "By"

DURATION_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1_800)
"""Upper bounds of the buckets in which durations are counted, in seconds; what takes longer is in a bucket of its own.
"""

_PROMETHEUS_UNITS = {SECONDS: "_seconds", BYTES: "_bytes"}


class MetricKind(StrEnum):
    """A COUNTER only grows, until the process ends. A GAUGE is as of now. A HISTOGRAM counts values in buckets."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Emitter(StrEnum):
    """The node that emits a metric: every one, or the owner of the cluster alone."""

    NODE = "node"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute that splits a metric. Invariant: what a tenant may choose is bounded by whoever reads it."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """One metric. A unit in braces counts what it names. `condition` says without which settings it is absent.

    `observed`: it is read when metrics are collected, from what is counted anyway; others are recorded as they happen.
    """

    name: str
    kind: MetricKind
    unit: str
    description: str
    attributes: tuple[Attribute, ...] = ()
    emitter: Emitter = Emitter.NODE
    condition: str = ""
    observed: bool = True

    @property
    def prometheus_name(self) -> str:
        """Return the name of the metric's family at the Prometheus endpoint."""
        total = "_total" if self.kind is MetricKind.COUNTER else ""
        return self.name.replace(".", "_") + _PROMETHEUS_UNITS.get(self.unit, "") + total


class MetricReading(NamedTuple):
    """The value of a metric at one moment, for these values of its attributes (by their names)."""

    metric: DeclaredMetric
    value: float
    attributes: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class CountedAs:
    """The metric, and the attributes in it, as which one of a node's counters is emitted."""

    metric: DeclaredMetric
    attributes: Mapping[str, str] = field(default_factory=dict)


def counter(name: str, unit: str, description: str, *attributes: Attribute, condition: str = "") -> DeclaredMetric:
    """Return a counter of every node, which is read when metrics are collected."""
    return DeclaredMetric(name, MetricKind.COUNTER, unit, description, attributes, condition=condition)


def gauge(name: str, unit: str, description: str, *attributes: Attribute, condition: str = "") -> DeclaredMetric:
    """Return a gauge of every node."""
    return DeclaredMetric(name, MetricKind.GAUGE, unit, description, attributes, condition=condition)


def owner_counter(
    name: str, unit: str, description: str, *attributes: Attribute, condition: str = ""
) -> DeclaredMetric:
    """Return a counter of the owner, which is read when metrics are collected."""
    return DeclaredMetric(name, MetricKind.COUNTER, unit, description, attributes, Emitter.OWNER, condition)


def owner_gauge(name: str, unit: str, description: str, *attributes: Attribute, condition: str = "") -> DeclaredMetric:
    """Return a gauge of the owner."""
    return DeclaredMetric(name, MetricKind.GAUGE, unit, description, attributes, Emitter.OWNER, condition)


def recorded_counter(
    name: str,
    unit: str,
    description: str,
    *attributes: Attribute,
    emitter: Emitter = Emitter.NODE,
    condition: str = "",
) -> DeclaredMetric:
    """Return a counter that is added to as something happens."""
    return DeclaredMetric(name, MetricKind.COUNTER, unit, description, attributes, emitter, condition, observed=False)


def duration(
    name: str, description: str, *attributes: Attribute, emitter: Emitter = Emitter.NODE, condition: str = ""
) -> DeclaredMetric:
    """Return a histogram of seconds, recorded as something ends."""
    return DeclaredMetric(
        name, MetricKind.HISTOGRAM, SECONDS, description, attributes, emitter, condition, observed=False
    )


# --- attributes that metrics of several concepts have -----------------------------------------------------------------

ACCOUNT = Attribute("iscp.account", "The account of the job")
TABLE = Attribute("iscp.table", "The URI of the table that the job is on")
JOB = Attribute("iscp.job", "The name of the job")
KIND = Attribute("iscp.kind", "The kind of consumer, as `replica` or `view`")
ERROR = Attribute(
    "error.type", "The [code](operations.md#error-codes) of the error, as `STORAGE`; absent where there was none"
)


# --- jobs -------------------------------------------------------------------------------------------------------------

JOB_STATE = Attribute(
    "iscp.job.state", "The state of the job: `pending`, `running`, `canceled`, `error` or `completed`"
)
JOB_REASON = Attribute(
    "iscp.job.reason", "Why it is so: `none`, `retrying`, `paused`, `quarantined`, `quota` or `building`"
)
JOB_COUNT = owner_gauge("iscp.job.count", "{job}", "Jobs", JOB_STATE, JOB_REASON)
JOB_LAG_MAX = owner_gauge(
    "iscp.job.lag.max", SECONDS, "Lag of the job that lags most, at most; absent if none is known"
)
JOB_LAG = owner_gauge(
    "iscp.job.lag",
    SECONDS,
    "Lag, at most, behind the job's own sources, of the jobs that lag most",
    ACCOUNT,
    TABLE,
    JOB,
    KIND,
)
JOB_LAG_GLOBAL = owner_gauge(
    "iscp.job.lag.global",
    SECONDS,
    "Lag behind the first tables on the way to the job: its own, and that of the jobs that make its sources",
    ACCOUNT,
    TABLE,
    JOB,
    KIND,
)
JOB_LAG_GLOBAL_REST = owner_gauge(
    "iscp.job.lag.global.rest", SECONDS, "Sum of these lags of all jobs that are not named"
)
JOB_LAG_REST = owner_gauge("iscp.job.lag.rest", SECONDS, "Sum of the lags of all jobs that are not named")
JOB_VERSIONS = owner_gauge(
    "iscp.job.lag.versions",
    "{version}",
    "Versions of the source that the job has not applied, of the same jobs",
    ACCOUNT,
    TABLE,
    JOB,
    KIND,
)
JOB_VERSIONS_REST = owner_gauge(
    "iscp.job.lag.versions.rest",
    "{version}",
    "Sum of the versions of all jobs that are not named",
)
JOB_UNNAMED = owner_gauge("iscp.job.unnamed", "{job}", "Jobs beyond `metrics.per_job_max`, which are in sums alone")
JOB_LATE = owner_gauge("iscp.job.late", "{job}", "Jobs that lag by more than their target lag")

# --- iterations -------------------------------------------------------------------------------------------------------
# Metrics of iterations: each job's part in one counts by itself.

ITERATION_STRATEGY = Attribute(
    "iscp.strategy",
    "How rows were brought up to date: `tail` (changes), `snapshot` or `difference` (all rows), `incremental`, `full`, "
    "`groups`, `changes` or `unchanged` for a view, or `verify` and `repair`",
)
ITERATION_PART = Attribute(
    "iscp.part", "`read`, `compute` or `commit` ([usage](iterations.md#what-an-iteration-costs))"
)
ITERATION_DURATION = duration(
    "iscp.iteration.duration", "How long an iteration ran, for each of its jobs", KIND, ITERATION_STRATEGY, ERROR
)
ITERATION_ROWS = recorded_counter(
    "iscp.iteration.rows", "{row}", "Rows that were written to targets", KIND, ITERATION_STRATEGY
)
ITERATION_IO = recorded_counter(
    "iscp.iteration.io", BYTES, "Bytes that were written to targets", KIND, ITERATION_STRATEGY
)
ITERATION_PARTS = duration(
    "iscp.iteration.part.duration",
    "How long the parts of a job's own work took",
    KIND,
    ITERATION_STRATEGY,
    ITERATION_PART,
)
ITERATION_WAIT = duration(
    "iscp.iteration.wait.duration", "How long an iteration waited, from its source's commit or its time, until it began"
)
ITERATION_ROWS_READ = recorded_counter(
    "iscp.iteration.rows.read", "{row}", "Rows that were read of sources", KIND, ITERATION_STRATEGY
)
ITERATION_IO_READ = recorded_counter(
    "iscp.iteration.io.read", BYTES, "Bytes that were read of sources", KIND, ITERATION_STRATEGY
)
ITERATION_CONFLICTS = recorded_counter(
    "iscp.iteration.conflicts", "{conflict}", "Commits that another writer was before", KIND, ITERATION_STRATEGY
)
ITERATION_RETRIES = recorded_counter(
    "iscp.iteration.retries", "{iteration}", "Iterations of a job whose last one had failed"
)

# --- views ------------------------------------------------------------------------------------------------------------
# Metrics of views: how they are refreshed, and why so. No refresh in full goes unnoticed.

VIEW_REASON = Attribute(
    "iscp.view.reason",
    "Why the strategy was taken: `first`, `policy`, `cost`, `small` (few rows of a simple view have changed), "
    "`unchanged`, `abandoned` (changes took as long as all rows do), or `forced` (the changes could not be used, "
    "which `job history` explains)",
)
VIEW_REFRESHES = recorded_counter(
    "iscp.view.refresh", "{refresh}", "Refreshes of views that succeeded", ITERATION_STRATEGY, VIEW_REASON
)

# --- nodes ------------------------------------------------------------------------------------------------------------
# Metrics of a node as a process: its queue and slots, memory, lease, probes and what it has to hand over.

_AUTHENTICATED = "`security.authentication`"
_NOTIFYING = "`notify.webhooks`"
NODE_OUTCOME = Attribute(
    "iscp.outcome", "`completed`, `failed`, `timeout`, `canceled`, or `rejected`, as the queue was full"
)
NODE_SUBMITTED = counter("iscp.node.iterations.submitted", "{iteration}", "Iterations that were queued")
NODE_ENDED = counter(
    "iscp.node.iterations", "{iteration}", "Iterations that have ended, failed if any job of it is", NODE_OUTCOME
)
NODE_WAITING = gauge("iscp.node.iterations.waiting", "{iteration}", "Iterations that wait for a slot")
NODE_RUNNING = gauge("iscp.node.iterations.running", "{iteration}", "Iterations that run")
NODE_HANGING = gauge(
    "iscp.node.iterations.hanging", "{iteration}", "Of these, iterations that nothing ends, whose slots are others'"
)
NODE_SLOTS = gauge("iscp.node.slots", "{iteration}", "Iterations that may run at once (`scheduler.concurrency`)")
NODE_HEAP_USED = gauge("iscp.node.heap.used", BYTES, "Heap of the node's JVM that is in use, garbage included")
NODE_HEAP_LIMIT = gauge("iscp.node.heap.limit", BYTES, "Heap that the node's JVM may use (`spark.driver_memory_mb`)")
NODE_MEMORY = gauge("iscp.node.memory", BYTES, "Resident memory of the node's Python process, without its JVM")
NODE_LEASE_VALID = gauge(
    "iscp.node.lease.valid",
    SECONDS,
    "How long the node may write before its lease has to be renewed; 0: it may not write now",
)
NODE_PROBES = counter("iscp.node.probes", "{probe}", "Probes of tables that have ended")
NODE_PROBES_LATE = gauge("iscp.node.probes.late", "{probe}", "Probes that have not answered within `probe.timeout_s`")
NODE_PROBES_WAITING = gauge("iscp.node.probes.waiting", "{probe}", "Probes that wait for a thread")
NODE_TABLES_NOTICED = gauge(
    "iscp.node.tables.noticed", "{table}", "Tables on local disks whose commits the kernel reports at once"
)
NODE_TABLES_UNNOTICED = gauge(
    "iscp.node.tables.unnoticed",
    "{table}",
    "Tables on local disks whose commits only probes find",
)
NODE_READS_HANGING = gauge(
    "iscp.node.reads.hanging", "{read}", "Reads for users that go on beyond their time, whose turns are others'"
)
NODE_WATCH_EVENTS = counter("iscp.node.watch.events", "{event}", "Changes of keys that watches of etcd have brought")
NODE_MAINTENANCE_RUNNING = gauge(
    "iscp.node.maintenance.running",
    "{task}",
    "Refreshes and purges of others' consumers that run, hanging ones included",
)
NODE_MAINTENANCE_HANGING = gauge(
    "iscp.node.maintenance.hanging", "{task}", "Of these, tasks that were given up (`upkeep.timeout_s`) and go on"
)
NODE_QUARANTINED = counter(
    "iscp.node.messages.quarantined",
    "{message}",
    "Messages that could not be read, reports and history entries that could not be written",
)
NODE_WEBHOOKS_POSTED = counter(
    "iscp.node.webhooks.posted", "{notification}", "Notifications that receivers have taken", condition=_NOTIFYING
)
NODE_WEBHOOKS_DROPPED = counter(
    "iscp.node.webhooks.dropped", "{notification}", "Notifications that were given up", condition=_NOTIFYING
)
NODE_WEBHOOKS_WAITING = gauge(
    "iscp.node.webhooks.waiting",
    "{notification}",
    "Notifications that wait for their receivers",
    condition=_NOTIFYING,
)
NODE_AUDIT_WAITING = gauge(
    "iscp.node.audit.waiting",
    "{entry}",
    "Entries of the audit that are not in its table yet",
    condition=_AUTHENTICATED,
)
NODE_AUDIT_LOST = counter(
    "iscp.node.audit.lost",
    "{entry}",
    "Entries of the audit that are in the node's log alone",
    condition=_AUTHENTICATED,
)
NODE_EXPORT_FAILURES = recorded_counter(
    "iscp.node.metrics.export.failures",
    "{export}",
    "Exports by OTLP that were given up; what was counted is in the next one",
)
NODE_READINGS_DROPPED = counter(
    "iscp.node.metrics.dropped", "{reading}", "Readings beyond what one metric may have, or that could not be read"
)
_ENDS = ("completed", "failed", "timeout", "canceled", "rejected")
NODE_COUNTERS: Mapping[str, CountedAs] = MappingProxyType(
    {each: CountedAs(NODE_ENDED, {NODE_OUTCOME.name: each}) for each in _ENDS}
    | {
        "submitted": CountedAs(NODE_SUBMITTED),
        "waiting": CountedAs(NODE_WAITING),
        "running": CountedAs(NODE_RUNNING),
        "hanging": CountedAs(NODE_HANGING),
        "reads_hanging": CountedAs(NODE_READS_HANGING),
        "upkeep_running": CountedAs(NODE_MAINTENANCE_RUNNING),
        "upkeep_hanging": CountedAs(NODE_MAINTENANCE_HANGING),
        "probes_late": CountedAs(NODE_PROBES_LATE),
        "probes_waiting": CountedAs(NODE_PROBES_WAITING),
        "tables_noticed": CountedAs(NODE_TABLES_NOTICED),
        "tables_unnoticed": CountedAs(NODE_TABLES_UNNOTICED),
        "quarantined": CountedAs(NODE_QUARANTINED),
        "webhooks_posted": CountedAs(NODE_WEBHOOKS_POSTED),
        "webhooks_waiting": CountedAs(NODE_WEBHOOKS_WAITING),
        "webhooks_dropped": CountedAs(NODE_WEBHOOKS_DROPPED),
        "audit_waiting": CountedAs(NODE_AUDIT_WAITING),
        "audit_lost": CountedAs(NODE_AUDIT_LOST),
    }
)
"""The metrics of the counters that `iscp-admin status` shows, by their names there."""

# --- the owner --------------------------------------------------------------------------------------------------------
# Metrics of the owner: nodes, shards, decisions, the job log and the global checkpoint.

OWNER_STATE = Attribute("iscp.shard.state", "`absent` (no node has it), `dispatching`, `running` or `draining`")
OWNER_DECISION = Attribute(
    "iscp.decision",
    "As in `iscp-admin events`: `term`, `join`, `sync`, `gone`, `revoke`, `dispatch`, `drain`, `clock`, `resign`",
)
OWNER_LEADS = gauge("iscp.owner.leads", "{node}", "1 at the node that is the owner, 0 at all others")
OWNER_NODES = owner_gauge("iscp.owner.nodes", "{node}", "Nodes that are registered")
OWNER_SHARDS = owner_gauge("iscp.owner.shards", "{shard}", "[Shards](cluster.md) that have jobs", OWNER_STATE)
OWNER_MOVING = owner_gauge("iscp.owner.shards.moving", "{shard}", "Shards that are on their way to another node")
OWNER_DECISIONS = owner_counter(
    "iscp.owner.decisions", "{decision}", "Decisions of this node as the owner", OWNER_DECISION
)
OWNER_CHECKPOINT_AGE = owner_gauge(
    "iscp.owner.checkpoint.age",
    SECONDS,
    "Age of the global checkpoint, up to which all jobs have applied all",
)
OWNER_LOG_COMMITS = owner_counter("iscp.owner.log.commits", "{commit}", "Commits to the job log by this node")

# --- builds -----------------------------------------------------------------------------------------------------------
# Metrics of first snapshots that are built by ranges.

BUILD_STAGE = Attribute("iscp.stage", "`waiting`, `building` or `publishing`")
BUILD_COUNT = owner_gauge("iscp.build.count", "{build}", "[Builds](builds.md) of jobs", BUILD_STAGE)
BUILD_TASKS = owner_gauge("iscp.build.tasks", "{task}", "Tasks of builds that are not finished")
BUILD_TASKS_RUNNING = owner_gauge("iscp.build.tasks.running", "{task}", "Of these, tasks that nodes work on")
BUILD_LEFT = owner_gauge(
    "iscp.build.left", "{build}", "What is left of the builds that go on, 1 for each that has only begun"
)

# --- indexes ----------------------------------------------------------------------------------------------------------
# Metrics of indexes: searches, which the owner answers, and what each index consists of. Their jobs have their lag.

_AN_INDEX = "an index"
INDEX_SEARCH_DURATION = duration(
    "iscp.index.search.duration",
    "How long a search took, with the wait for its turn",
    ERROR,
    emitter=Emitter.OWNER,
    condition="a search",
)


def _figure(name: str, unit: str, description: str) -> DeclaredMetric:
    return owner_gauge(f"iscp.index.{name}", unit, description, ACCOUNT, TABLE, JOB, condition=_AN_INDEX)


INDEX_ROWS = _figure("rows", "{row}", "Rows of the source")
INDEX_FAULTS = _figure("rows.faults", "{row}", "Of these, rows that cannot be indexed")
INDEX_UNEMBEDDED = _figure("rows.unembedded", "{row}", "Rows without a vector, in an index of vectors")
INDEX_FRESH = _figure(
    "rows.fresh", "{row}", "Rows that no segment has yet, added up over its parts: each search reads them"
)
INDEX_DEAD = _figure("rows.dead", "{row}", "Deleted rows that are still in files")
INDEX_SEGMENTS = _figure("segments", "{segment}", "Segments of all its parts")
INDEX_SIZE = _figure("size", BYTES, "Bytes of the files of its newest version")

# --- changefeeds ------------------------------------------------------------------------------------------------------
# Metrics of changefeeds that jobs write: how far their readers' stored cursors are behind the newest row.

_A_CURSOR = "a stored cursor"
FEED_CURSOR = Attribute("iscp.feed.cursor", "The name under which a reader has stored its cursor")
FEED_LAG = owner_gauge(
    "iscp.feed.cursor.lag",
    SECONDS,
    "Time from the row up to which a cursor has come to the newest one, in the shard in which that is longest; of the "
    "cursors that are furthest behind",
    ACCOUNT,
    TABLE,
    JOB,
    FEED_CURSOR,
    condition=_A_CURSOR,
)
FEED_LAG_REST = owner_gauge(
    "iscp.feed.cursor.lag.rest", SECONDS, "Sum of the lags of all cursors that are not named", condition=_A_CURSOR
)
FEED_COUNT = owner_gauge("iscp.feed.cursor.count", "{cursor}", "Cursors whose lag is known", condition=_A_CURSOR)
FEED_UNNAMED = owner_gauge(
    "iscp.feed.cursor.unnamed",
    "{cursor}",
    "Cursors beyond `metrics.per_job_max`, which are in sums alone",
    condition=_A_CURSOR,
)

# --- all of them ------------------------------------------------------------------------------------------------------

METRICS = tuple(each for each in tuple(vars().values()) if isinstance(each, DeclaredMetric))
