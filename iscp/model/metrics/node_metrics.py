"""Metrics of a node as a process: its queue and slots, memory, lease, probes and what it has to hand over."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from iscp.model.metrics.metric import (
    BYTES,
    SECONDS,
    Attribute,
    CountedAs,
    DeclaredMetric,
    counter,
    gauge,
    recorded_counter,
)

_AUTHENTICATED = "`security.authentication`"
_NOTIFYING = "`notify.webhooks`"

OUTCOME = Attribute(
    "iscp.outcome", "`completed`, `failed`, `timeout`, `canceled`, or `rejected`, as the queue was full"
)

SUBMITTED = counter("iscp.node.iterations.submitted", "{iteration}", "Iterations that were queued")
ENDED = counter(
    "iscp.node.iterations", "{iteration}", "Iterations that have ended, failed if any job of it is", OUTCOME
)
WAITING = gauge("iscp.node.iterations.waiting", "{iteration}", "Iterations that wait for a slot")
RUNNING = gauge("iscp.node.iterations.running", "{iteration}", "Iterations that run")
HANGING = gauge(
    "iscp.node.iterations.hanging", "{iteration}", "Of these, iterations that nothing ends, whose slots are others'"
)
SLOTS = gauge("iscp.node.slots", "{iteration}", "Iterations that may run at once (`scheduler.concurrency`)")
HEAP_USED = gauge("iscp.node.heap.used", BYTES, "Heap of the node's JVM that is in use, garbage included")
HEAP_LIMIT = gauge("iscp.node.heap.limit", BYTES, "Heap that the node's JVM may use (`spark.driver_memory_mb`)")
MEMORY = gauge("iscp.node.memory", BYTES, "Resident memory of the node's Python process, without its JVM")
LEASE_VALID = gauge(
    "iscp.node.lease.valid",
    SECONDS,
    "How long the node may write before its lease has to be renewed; 0: it may not write now",
)
PROBES = counter("iscp.node.probes", "{probe}", "Probes of tables that have ended")
PROBES_LATE = gauge("iscp.node.probes.late", "{probe}", "Probes that have not answered within `probe.timeout_s`")
PROBES_WAITING = gauge("iscp.node.probes.waiting", "{probe}", "Probes that wait for a thread")
TABLES_NOTICED = gauge(
    "iscp.node.tables.noticed", "{table}", "Tables on local disks whose commits the kernel reports at once"
)
TABLES_UNNOTICED = gauge(
    "iscp.node.tables.unnoticed",
    "{table}",
    "Tables on local disks whose commits only probes find",
)
READS_HANGING = gauge(
    "iscp.node.reads.hanging", "{read}", "Reads for users that go on beyond their time, whose turns are others'"
)
WATCH_EVENTS = counter("iscp.node.watch.events", "{event}", "Changes of keys that watches of etcd have brought")
MAINTENANCE_RUNNING = gauge(
    "iscp.node.maintenance.running",
    "{task}",
    "Refreshes and purges of others' consumers that run, hanging ones included",
)
MAINTENANCE_HANGING = gauge(
    "iscp.node.maintenance.hanging", "{task}", "Of these, tasks that were given up (`upkeep.timeout_s`) and go on"
)
QUARANTINED = counter(
    "iscp.node.messages.quarantined", "{message}", "Reports and history entries that could not be understood or written"
)
WEBHOOKS_POSTED = counter(
    "iscp.node.webhooks.posted", "{notification}", "Notifications that receivers have taken", condition=_NOTIFYING
)
WEBHOOKS_DROPPED = counter(
    "iscp.node.webhooks.dropped", "{notification}", "Notifications that were given up", condition=_NOTIFYING
)
WEBHOOKS_WAITING = gauge(
    "iscp.node.webhooks.waiting", "{notification}", "Notifications that wait for their receivers", condition=_NOTIFYING
)
AUDIT_WAITING = gauge(
    "iscp.node.audit.waiting", "{entry}", "Entries of the audit that are not in its table yet", condition=_AUTHENTICATED
)
AUDIT_LOST = counter(
    "iscp.node.audit.lost", "{entry}", "Entries of the audit that are in the node's log alone", condition=_AUTHENTICATED
)
EXPORT_FAILURES = recorded_counter(
    "iscp.node.metrics.export.failures",
    "{export}",
    "Exports by OTLP that were given up; what was counted is in the next one",
)
READINGS_DROPPED = counter(
    "iscp.node.metrics.dropped", "{reading}", "Readings beyond what one metric may have, or that could not be read"
)

METRICS: tuple[DeclaredMetric, ...] = (
    SUBMITTED,
    ENDED,
    WAITING,
    RUNNING,
    HANGING,
    SLOTS,
    HEAP_USED,
    HEAP_LIMIT,
    MEMORY,
    LEASE_VALID,
    PROBES,
    PROBES_LATE,
    PROBES_WAITING,
    TABLES_NOTICED,
    TABLES_UNNOTICED,
    READS_HANGING,
    WATCH_EVENTS,
    MAINTENANCE_RUNNING,
    MAINTENANCE_HANGING,
    QUARANTINED,
    WEBHOOKS_POSTED,
    WEBHOOKS_DROPPED,
    WEBHOOKS_WAITING,
    AUDIT_WAITING,
    AUDIT_LOST,
    EXPORT_FAILURES,
    READINGS_DROPPED,
)

_ENDS = ("completed", "failed", "timeout", "canceled", "rejected")

COUNTERS: Mapping[str, CountedAs] = MappingProxyType(
    {each: CountedAs(ENDED, {OUTCOME.name: each}) for each in _ENDS}
    | {
        "submitted": CountedAs(SUBMITTED),
        "waiting": CountedAs(WAITING),
        "running": CountedAs(RUNNING),
        "hanging": CountedAs(HANGING),
        "reads_hanging": CountedAs(READS_HANGING),
        "upkeep_running": CountedAs(MAINTENANCE_RUNNING),
        "upkeep_hanging": CountedAs(MAINTENANCE_HANGING),
        "probes_late": CountedAs(PROBES_LATE),
        "probes_waiting": CountedAs(PROBES_WAITING),
        "tables_noticed": CountedAs(TABLES_NOTICED),
        "tables_unnoticed": CountedAs(TABLES_UNNOTICED),
        "quarantined": CountedAs(QUARANTINED),
        "webhooks_posted": CountedAs(WEBHOOKS_POSTED),
        "webhooks_waiting": CountedAs(WEBHOOKS_WAITING),
        "webhooks_dropped": CountedAs(WEBHOOKS_DROPPED),
        "audit_waiting": CountedAs(AUDIT_WAITING),
        "audit_lost": CountedAs(AUDIT_LOST),
    }
)
"""The metrics of the counters that `iscp-admin status` shows, by their names there."""
