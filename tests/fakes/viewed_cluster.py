"""A cluster in memory as the page's viewers see it: jobs, histories, nodes, and failures that a test sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from iscp.client.admin_client import Client
from iscp.model.access.authorization import AuditEntry
from iscp.model.api.api_requests import (
    ClusterView,
    EventView,
    JobView,
    LeftOutRows,
    NodeView,
    RegisterResult,
    SearchAnswer,
    ShardView,
)
from iscp.model.build.build_progress import BuildView
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.model.query_plan import QueryExplanation
from iscp.model.values.errors import JobNotFound, NotAuthenticated
from iscp.server.page.page_viewers import Viewer

NOW_S = 1_800_000_000.0


def job_view(number: int = 0, spec: Mapping[str, Any] | None = None, **changes: Any) -> JobView:
    """Return a replica's job that is fresh, but for the changes; `number` distinguishes it from others."""
    consumer = {"kind": "replica", "target": f"/lake/copies/c{number}", "key": ["id"]}
    made = JobView(
        account="acme",
        table_id=f"id-{number}",
        table=f"/lake/t{number}",
        name=f"copy{number}",
        job_id=f"{number:012x}",
        spec_json=json.dumps(spec or {"iteration": {"consumer": consumer}, "target_lag": 60}),
        state=JobState.COMPLETED,
        reason=Reason.NONE,
        applied_version=7,
        applied_at_s=NOW_S - 5,
        source_version=7,
        checked_at_s=NOW_S - 1,
        lag_s=0.0,
        seq=4,
        status=JobStatus(from_version=6, to_version=7, start_at_s=NOW_S - 6, end_at_s=NOW_S - 5, rows=10, bytes=1000),
        create_at_s=NOW_S - 1000,
        node_id="iscp-0",
    )
    defaults = {"condition": "", "lag_least_s": changes.get("lag_s", 0.0)}
    return replace(made, **defaults | changes)


def history_entry(seq: int = 4, **changes: Any) -> HistoryEntry:
    made = HistoryEntry(
        account="acme",
        table_id="id-0",
        job_name="copy0",
        job_id=f"{0:012x}",
        seq=seq,
        from_version=seq,
        to_version=seq + 1,
        start_at_s=NOW_S - 100 + seq,
        end_at_s=NOW_S - 98 + seq,
        source_commit_at_s=NOW_S - 103 + seq,
        error_code=0,
        error_msg="",
        rows=10,
        bytes=2048,
        data_type="tail",
        node_id="iscp-0",
    )
    return replace(made, **changes)


def cluster_view(**changes: Any) -> ClusterView:
    nodes = (
        NodeView("iscp-0", 10, "127.0.0.1:7430", 1, "0.1.0", "ready", 3, 1, 2, 1.5),
        NodeView("iscp-1", 11, "127.0.0.1:7431", 2, "0.1.0", "ready", 1, 0, 0, 0.5),
    )
    shards = tuple(ShardView(f"id-{n}", f"/lake/t{n}", nodes[n // 3].node_id, "running", 1) for n in range(4))
    made = ClusterView("iscp-0", 5, nodes, shards, 4, 1.5, {"submitted": 9}, checkpoint_at_s=NOW_S - 3)
    return replace(made, **changes)


@dataclass
class ViewedCluster:
    """The clients of the page, and the one cluster that all of them call.

    `tokens`: those that are good (None: nobody needs one). `fault` is raised by each call from now on, and `refused` by
    the calls of these names. `done` has the calls that changed something.
    """

    listed: list[JobView] = field(default_factory=list)
    histories: dict[str, list[HistoryEntry]] = field(default_factory=dict)
    state: ClusterView = field(default_factory=cluster_view)
    owner_events: list[EventView] = field(default_factory=list)
    entries: list[AuditEntry] = field(default_factory=list)
    built: list[BuildView] = field(default_factory=list)
    tokens: set[str] | None = None
    fault: Exception | None = None
    refused: Mapping[str, Exception] = field(default_factory=dict)
    done: list[tuple[str, ...]] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    viewers: list[Viewer] = field(default_factory=list)
    explanation: QueryExplanation = field(default_factory=lambda: QueryExplanation(()))
    changed: bool = True
    left_out: LeftOutRows = field(default_factory=LeftOutRows)
    found: SearchAnswer = field(default_factory=lambda: SearchAnswer((), 7, NOW_S, 3))
    searched: list[tuple[str, str, str]] = field(default_factory=list)

    def client(self, viewer: Viewer) -> Client:
        self.viewers.append(viewer)
        return cast(Client, _ViewedClient(self, viewer))

    def close(self) -> None:
        self.calls.append("close")


class _ViewedClient:
    """The calls of one viewer."""

    def __init__(self, cluster: ViewedCluster, viewer: Viewer) -> None:
        self._cluster = cluster
        self._viewer = viewer
        # One object stands for all parts of a client: their verbs have different names.
        self.operator = self.access = self.builds = self

    def _enter(self, verb: str) -> ViewedCluster:
        cluster = self._cluster
        cluster.calls.append(verb)
        if cluster.tokens is not None and self._viewer.token not in cluster.tokens and not self._viewer.names:
            raise NotAuthenticated("is not known", field="token", remedy="Get another one")
        if error := cluster.refused.get(verb) or cluster.fault:
            raise error
        return cluster

    def jobs(self, *, limit: int) -> list[JobView]:
        return self._enter("jobs").listed[:limit]

    def count(self) -> int:
        return len(self._enter("count").listed)

    def status(self, table: str, name: str, *, account: str = "") -> JobView:
        for job in self._enter("status").listed:
            if table in (job.table, job.table_id) and job.name == name:
                return job
        raise JobNotFound(f"there is no job {name} on {table}", field="job", remedy="See the list of jobs")

    def history(self, table: str, name: str, *, limit: int, account: str = "") -> list[HistoryEntry]:
        return self._enter("history").histories.get(name, [])[:limit]

    def dead_letters(self, table: str, name: str, *, account: str = "") -> LeftOutRows:
        return self._enter("dead-letters").left_out

    def explain(self, table: str, name: str, *, account: str = "") -> QueryExplanation:
        return self._enter("explain").explanation

    def cluster(self) -> ClusterView:
        return self._enter("cluster").state

    def events(self) -> list[EventView]:
        return self._enter("events").owner_events

    def audit(self, *, limit: int) -> list[AuditEntry]:
        return self._enter("audit").entries[:limit]

    def list(self) -> Sequence[BuildView]:
        return self._enter("builds").built

    def search(self, uri: str, text: str, *, k: int, highlight: bool, account: str) -> SearchAnswer:
        cluster = self._enter("search")
        cluster.searched.append((uri, text, account))
        return replace(cluster.found, hits=cluster.found.hits[:k])

    def pause(self, table: str, name: str, *, account: str) -> bool:
        return self._change("pause", table, name, account)

    def resume(self, table: str, name: str, *, account: str) -> bool:
        return self._change("resume", table, name, account)

    def resync(self, table: str, name: str, *, account: str) -> RegisterResult:
        return RegisterResult(self._change("resync", table, name, account), "j", "t")

    def drain(self, node_id: str) -> int:
        return int(self._change("drain", node_id))

    def uncordon(self, node_id: str) -> bool:
        return self._change("uncordon", node_id)

    def _change(self, verb: str, *named: str) -> bool:
        cluster = self._enter(verb)
        cluster.done.append((verb, *named))
        return cluster.changed
