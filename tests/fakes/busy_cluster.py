"""A cluster in memory with something of everything that the page shows, as large as a test wants."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from iscp.model.access.authorization import AuditEntry
from iscp.model.api.api_requests import (
    EventView,
    JobView,
    LeftOutRow,
    LeftOutRows,
    NodeView,
    SearchAnswer,
    SearchHit,
    ShardView,
)
from iscp.model.build.build_progress import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.model.job.iteration import HistoryEntry, Usage
from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.model.query_plan import ChangeCost, ExplainedOperator, OperatorUpkeep, QueryExplanation
from iscp.model.values.progress import RunProgress
from tests.fakes.viewed_cluster import NOW_S, ViewedCluster, cluster_view, history_entry, job_view

SQL = "SELECT carrier, count(*) AS flights, sum(delay) AS delay\nFROM flights\nGROUP BY carrier"

_TABLES = ("flights", "orders", "customers", "payments", "weather", "airports", "clicks", "devices")


def busy_cluster(jobs: int = 24) -> ViewedCluster:
    """Return a cluster with so many jobs, the same ones each time."""
    draw = random.Random(7)
    listed = [_job(number, draw) for number in range(jobs)]
    nodes = tuple(
        NodeView(f"iscp-{n}", 100 + n, f"10.0.0.{n}:7430", 3, "0.1.0", "ready", 0, n, 2, 0.4 + n) for n in range(3)
    )
    shards = tuple(
        ShardView(job.table_id, job.table, nodes[n % 3].node_id, "draining" if n % 17 == 5 else "running", 1)
        for n, job in enumerate(listed)
    )
    counted = tuple(replace(node, shards=sum(each.node_id == node.node_id for each in shards)) for node in nodes)
    kinds = ("term", "join", "dispatch", "gone", "drain")
    events = [
        EventView(
            5, n, NOW_S - 600 + 20 * n, kinds[n % 5], f"iscp-{n % 3}", f"id-{n}", "its lease ended" * (n % 5 == 3)
        )
        for n in range(1, 30)
    ]
    entries = [
        AuditEntry(
            NOW_S - 60 * n, "iscp-0", "acme", "acme", "editor", "ana", "token", "ipv4:10.0.0.9:5", verb, "{}", "", "OK"
        )
        for n, verb in enumerate(("Pause", "Resume", "Register", "UpdateJobs"))
    ]
    tasks = tuple(BuildTaskView(n, "copy10", f"iscp-{n % 3}", TaskState.RUNNING) for n in range(4))
    build = BuildView(
        "/lake/customers_10", "id-10", "acme", ("copy10",), 50, BuildStage.BUILDING, NOW_S - 60, tasks=tasks
    )
    by_node = tuple(BuildNodeView(f"iscp-{n}", 1_400_000, 90_000_000) for n in range(3))
    build = replace(build, rows_total=10_000_000, rows_done=4_200_000, done_share=0.42, nodes=by_node)
    hits = tuple(
        SearchHit(
            {"id": n}, 4.2 - n, {"carrier": "AA", "note": "x"}, {"text": (f"a <em>late</em> flight {n} from JFK",)}
        )
        for n in range(3)
    )
    state = cluster_view(nodes=counted, shards=shards, jobs=jobs, moving=1, lag_max_s=320.0)
    return ViewedCluster(
        listed=listed,
        histories={job.name: _history(draw) for job in listed[:200]},
        state=state,
        owner_events=events,
        entries=entries,
        built=[replace(build, rows_per_s=70_000.0, left_s=83.0)],
        left_out=LeftOutRows(
            tuple(
                LeftOutRow({f"column_of_a_long_name_{c}": f"a text of row {n}" for c in range(9)}, "the same id")
                for n in range(3)
            ),
            "/lake/copies/airports_9_dead_letter",
        ),
        found=SearchAnswer(hits, 42, NOW_S - 4, 9, took_ms=3.0),
        explanation=QueryExplanation(
            (
                ExplainedOperator(0, "sum(delay), count(*) by carrier", OperatorUpkeep.STATE, "one row for each group"),
                ExplainedOperator(1, "flights", OperatorUpkeep.LINEAR, costs=(ChangeCost("flights", 1000, 0),)),
            )
        ),
    )


def _job(number: int, draw: random.Random) -> JobView:
    table = f"/lake/{_TABLES[number % len(_TABLES)]}_{number}"
    lag_s = draw.choice((0.0, 0.0, 0.4, 2.5, 7.0))
    times = JobStatus(start_at_s=NOW_S - 20 * number - 8, end_at_s=NOW_S - 20 * number)
    changes: dict[str, Any] = {
        "status": times,
        "table": table,
        "lag_s": lag_s,
        "applied_version": 40 + number,
        "source_version": 40 + number,
    }
    options: dict[str, Any] = {
        "sql": SQL,
        "tables": {"flights": table, "weather": f"/lake/copies/weather_{number // 8 * 8 + 4}"},
    }
    consumer: dict[str, Any] = {"kind": "replica", "target": f"/lake/copies/{table[6:]}", "key": ["id"]}
    match number % 12:
        case 1:
            consumer = {"kind": "view", "target": f"/lake/views/by_carrier_{number}", "options": options}
        case 2:
            changes["table"] = f"/lake/views/by_carrier_{number - 1}"
            consumer = {"kind": "changefeed", "target": f"/lake/feeds/{table[6:]}"}
        case 3:
            changes["table"] = f"/lake/views/by_carrier_{number - 2}"
            consumer = {"kind": "search", "target": f"/lake/indexes/{table[6:]}", "key": ["id"]}
        case 4:
            changes |= {"lag_s": 320.0, "late": True, "source_version": 60 + number}
        case 5:
            status = JobStatus(error_code=10_004, error_msg="key id = 17 is there twice. Make it unique at the source")
            changes |= {"state": JobState.ERROR, "lag_s": 4000.0, "late": True, "status": status}
        case 6:
            status = JobStatus(error_code=9, error_msg="the store did not answer", failures=3, retry_at_s=NOW_S + 40)
            changes |= {"reason": Reason.RETRYING, "status": status, "lag_s": 90.0, "late": True}
        case 7:
            changes |= {"reason": Reason.PAUSED, "lag_s": 400_000.0, "retained_s": 604_800.0}
        case 8:
            progress = RunProgress("apply", NOW_S - 20, 20.0, 10, 4, 40_000, 9_000_000, 30_000, 8_000_000, 100_000)
            times = JobStatus(start_at_s=NOW_S - 20)
            changes |= {
                "state": JobState.RUNNING,
                "status": times,
                "progress": replace(progress, rows_per_s=2000.0, left_s=30.0),
            }
        case 9:
            changes |= {"status": JobStatus(dead_letters=12, warning="12 rows share a key with another")}
    spec = {"iteration": {"consumer": consumer}, "target_lag": 60}
    account = "acme" if number % 3 else "globex"
    return job_view(number, spec, account=account, node_id=f"iscp-{number % 3}", **changes)


def _history(draw: random.Random) -> list[HistoryEntry]:
    found = []
    for seq in range(30, 0, -1):
        parts = {name: draw.uniform(0.05, 1.5) for name in ("wait", "read", "compute", "commit")}
        end_s = NOW_S - (30 - seq) * 60
        found.append(
            history_entry(
                seq,
                start_at_s=end_s - sum(parts.values()) + parts["wait"],
                end_at_s=end_s,
                source_commit_at_s=end_s - draw.uniform(2.0, 30.0),
                usage=Usage(parts["wait"], parts["read"], parts["compute"], parts["commit"]),
                rows=draw.randrange(1, 5000),
                error_code=9 if seq == 12 else 0,
                error_msg="the store did not answer" if seq == 12 else "",
                data_type="incremental" if seq % 5 else "full",
                reason="" if seq % 5 else "more than half of the rows changed",
            )
        )
    return found
