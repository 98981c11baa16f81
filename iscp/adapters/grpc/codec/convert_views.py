"""Converts what `Admin` shows between values and messages: jobs, their history, reports and the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from iscp.adapters.grpc.codec.convert import (
    REASON_FROM_WIRE,
    REASON_TO_WIRE,
    STATE_FROM_WIRE,
    STATE_TO_WIRE,
    fields_of,
    pages,
)
from iscp.adapters.grpc.codec.maintenance_codec import upkeep_from_wire, upkeep_to_wire
from iscp.adapters.grpc.codec.wire_builds import build_from_wire, build_to_wire
from iscp.adapters.grpc.codec.wire_marks import marks_from_wire, marks_to_wire
from iscp.adapters.tls.endpoint import FORMAT_VERSION
from iscp.core.api.api_views import (
    ClusterView,
    JobView,
    LeftOutJob,
    NodeView,
    ShardView,
)
from iscp.core.job.iteration import HistoryEntry
from iscp.core.job.job_row import JobStatus
from iscp.core.job.verification import Comparison, Sample, VerifyReport
from iscp.core.values.errors import PermanentError
from iscp.core.values.progress import PROGRESS_CHECKS, RunProgress
from iscp.wire.v1 import admin_pb2 as pb

_STATUS_FIELDS = tuple(field.name for field in pb.JobStatus.DESCRIPTOR.fields if field.name not in ("sources", "build"))


_JOB_FIELDS = (
    "account",
    "table_id",
    "table",
    "name",
    "job_id",
    "spec_json",
    "applied_version",
    "applied_at_s",
    "source_version",
    "checked_at_s",
    "lag_s",
    "seq",
    "create_at_s",
    "node_id",
    "late",
    "ranges",
)


_HISTORY_FIELDS = tuple(field.name for field in pb.HistoryEntry.DESCRIPTOR.fields)


_REPORT_FIELDS = ("version", "seq", "void", "repaired")


_COMPARISON_FIELDS = (
    "rows_source",
    "rows_target",
    "ranges",
    "ranges_differing",
    "missing",
    "extra",
    "different",
    "shared",
)


_NODE_FIELDS = tuple(field.name for field in pb.Node.DESCRIPTOR.fields)


_SHARD_FIELDS = tuple(field.name for field in pb.Shard.DESCRIPTOR.fields)


_LEFT_OUT_FIELDS = tuple(field.name for field in pb.LeftOut.DESCRIPTOR.fields)


def job_to_wire(job: JobView) -> pb.Job:
    return pb.Job(
        state=STATE_TO_WIRE[job.state],
        reason=REASON_TO_WIRE[job.reason],
        status=_status_to_wire(job.status),
        upkeep=upkeep_to_wire(job.upkeep),
        progress=progress_to_wire(job.progress) if job.progress else None,
        **fields_of(job, _JOB_FIELDS),
    )


def job_from_wire(message: pb.Job) -> JobView:
    """Raises PermanentError where the node is newer and speaks of states unknown here."""
    state, reason = STATE_FROM_WIRE.get(message.state), REASON_FROM_WIRE.get(message.reason)
    if state is None or reason is None:
        raise PermanentError(
            f"the node reports state {message.state}, reason {message.reason}, which are not known here",
            remedy="Use a client as new as the node",
        )
    return JobView(
        state=state,
        reason=reason,
        status=_status_from_wire(message.status),
        upkeep=upkeep_from_wire(message.upkeep),
        progress=progress_from_wire(message.progress) if message.HasField("progress") else None,
        **fields_of(message, _JOB_FIELDS),
    )


def _status_to_wire(status: JobStatus) -> pb.JobStatus:
    plain = fields_of(status, _STATUS_FIELDS)
    return pb.JobStatus(sources=marks_to_wire(status.sources), build=build_to_wire(status.build), **plain)


def _status_from_wire(message: pb.JobStatus) -> JobStatus:
    plain = fields_of(message, _STATUS_FIELDS)
    return JobStatus(sources=marks_from_wire(message.sources), build=build_from_wire(message), **plain)


def progress_to_wire(progress: RunProgress) -> pb.Progress:
    return pb.Progress(**fields_of(progress, tuple(PROGRESS_CHECKS)))


def progress_from_wire(message: pb.Progress) -> RunProgress:
    """Raises ValueError for figures that cannot be."""
    return RunProgress(**{name: check(getattr(message, name), name) for name, check in PROGRESS_CHECKS.items()})


def history_to_wire(entry: HistoryEntry) -> pb.HistoryEntry:
    return pb.HistoryEntry(**fields_of(entry, _HISTORY_FIELDS))


def history_from_wire(message: pb.HistoryEntry) -> HistoryEntry:
    return HistoryEntry(**{**fields_of(message, _HISTORY_FIELDS), "parts_s": dict(message.parts_s)})


def report_to_wire(report: VerifyReport) -> pb.VerifyReport:
    samples = [pb.VerifySample(fault=one.fault, key=one.key, columns=one.columns) for one in report.comparison.samples]
    return pb.VerifyReport(
        **fields_of(report, _REPORT_FIELDS), **fields_of(report.comparison, _COMPARISON_FIELDS), samples=samples
    )


def report_from_wire(message: pb.VerifyReport) -> VerifyReport:
    samples = tuple(Sample(one.fault, one.key, tuple(one.columns)) for one in message.samples)
    comparison = Comparison(**fields_of(message, _COMPARISON_FIELDS), samples=samples)
    return VerifyReport(**fields_of(message, _REPORT_FIELDS), comparison=comparison)


def cluster_to_wire(cluster: ClusterView) -> Iterator[pb.ClusterPage]:
    """The first page holds everything but the shards, which follow in as many as it takes."""
    head = pb.Cluster(
        format_version=FORMAT_VERSION,
        owner=cluster.owner,
        owner_rev=cluster.owner_rev,
        nodes=[pb.Node(**fields_of(node, _NODE_FIELDS)) for node in cluster.nodes],
        jobs=cluster.jobs,
        lag_max_s=cluster.lag_max_s,
        counters=cluster.counters,
        checkpoint_at_s=cluster.checkpoint_at_s,
        left_out=[pb.LeftOut(**fields_of(each, _LEFT_OUT_FIELDS)) for each in cluster.left_out],
        left_out_count=cluster.left_out_count,
        moving=cluster.moving,
    )
    yield pb.ClusterPage(cluster=head)
    for page in pages(pb.Shard(**fields_of(shard, _SHARD_FIELDS)) for shard in cluster.shards):
        yield pb.ClusterPage(shards=page)


def cluster_from_wire(messages: Iterable[pb.ClusterPage]) -> ClusterView:
    head = pb.Cluster()
    shards: list[ShardView] = []
    for message in messages:
        if message.HasField("cluster"):
            head = message.cluster
        shards += (ShardView(**fields_of(shard, _SHARD_FIELDS)) for shard in message.shards)
    return ClusterView(
        owner=head.owner,
        owner_rev=head.owner_rev,
        nodes=tuple(NodeView(**fields_of(node, _NODE_FIELDS)) for node in head.nodes),
        shards=tuple(shards),
        jobs=head.jobs,
        lag_max_s=head.lag_max_s,
        counters=dict(head.counters),
        checkpoint_at_s=head.checkpoint_at_s,
        left_out=tuple(LeftOutJob(**fields_of(each, _LEFT_OUT_FIELDS)) for each in head.left_out),
        left_out_count=head.left_out_count,
        moving=head.moving,
    )
