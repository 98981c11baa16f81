"""A node as users reach it: the real servicer, validation, catalog and consumers, over a log and etcd in memory.

What is sent to it may be anything; `state` is all that it keeps, to be compared before and after.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from iscp.app.coordination_parts import feed_pages
from iscp.app.registry import ConsumerRegistry
from iscp.cluster.read_services import JobSearch, NodeFeeds, feed_turns, owners_jobs_at
from iscp.cluster.requests.job_maker import JobMaker
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.cluster.worker_loop import VerifyDesk
from iscp.delta.source.delta_catalog import DeltaCatalog
from iscp.engine.account_turns import AccountTurns, TurnBounds
from iscp.model.api.api_requests import ChangeVerb, JobChange, JobFilter, JobName, NodeVerb, RegisterRequest
from iscp.model.build.build_progress import BuildStage, JobBuild, KnownBuilds
from iscp.model.build.build_task import BuildPlan, BuildTask, TaskType
from iscp.model.spec.spec import ConsumerSpec, JobSpec, TriggerSpec
from iscp.model.values.errors import InvalidRequest
from iscp.model.values.ids import DEFAULT_ACCOUNT
from iscp.ports.system import Clock
from iscp.server.access.access_interceptor import AccessServer
from iscp.server.access.known_callers import TokenService
from iscp.server.admin.admin_server import AdminServer, BuildServer, FeedServer, OperatorServer, SearchServer
from iscp.server.admin.forwarding import Forwarding, OwnersJobs
from iscp.server.admin.operator_service import OwnerBuilds, OwnerOperator, Resharder
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.access import FakeAudit, FakeTokens
from tests.fakes.etcd import FakeOverrides
from tests.fakes.nodes import FakeCalls, nodes_and_views
from tests.fakes.owner import OwnerWorld
from tests.fakes.owner_admin import owner_admin
from tests.fakes.searches import FakeIndexes
from tests.fakes.shown_builds import FakeTermBuilds
from tests.fakes.waiting import until

KEPT = "kept"


class FuzzedNode:
    """`table` is a Delta table with the job KEPT, `free` one without jobs, below `lake`."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake
        self.table, self.free = str(lake / "orders"), str(lake / "items")
        for path in (self.table, self.free):
            write_deltalake(path, pa.table({"id": [1, 2], "state": ["open", "done"]}))
        self.table_id = str(DeltaTable(self.table).metadata().id)
        self.world, clock, catalog, kinds = OwnerWorld(), SystemClock(), DeltaCatalog(), ConsumerRegistry()
        self.world.lead()
        owner = self.world.owner
        self.verifying = VerifyDesk(lambda event: None, clock)
        calls = FakeCalls(self.verifying)
        nodes, views = nodes_and_views(owner, self.world.membership, self.world.clock, calls)
        intake = RequestValidator(JobMaker(catalog, kinds.kind, _refuse_trigger, clock))
        self.admin = owner_admin(owner, catalog, kinds.kind, clock, nodes, views.view, intake=intake)
        store = FakeOverrides(self.world.etcd)
        resharder = Resharder(owner, catalog, kinds.kind, intake)
        self.operator = OwnerOperator(owner, store, catalog, resharder, nodes, kinds.described)
        builder = FakeTermBuilds(KnownBuilds((_build(self.table_id),)))
        builds = OwnerBuilds(owner, catalog, builder, self.admin.change, clock)
        self.tokens = FakeTokens()
        access = TokenService(self.tokens, FakeAudit(), clock, secrets.token_hex)
        turns = AccountTurns(TurnBounds(4, 2, 30.0), "search", "search", "Retry")
        searches = JobSearch(owners_jobs_at(owner), catalog, FakeIndexes().search, turns)
        feeds = FeedServer(_feeds(clock), OwnersJobs(self.admin, Forwarding(lambda: None)).job)
        services = (
            *(OperatorServer(self.operator), BuildServer(builds), SearchServer(searches), feeds),
            AccessServer(access),
        )
        self.server = AdminServer(self.admin, "127.0.0.1:0", services=services)
        self._register()
        self.server.start()
        self.server.ready()

    @property
    def address(self) -> str:
        return self.server.address

    def state(self) -> tuple[Any, ...]:
        """All that is kept: the log's rows, what operators said, and the files."""
        log = self.world.storage
        files = sorted((str(path), path.stat().st_size) for path in self.lake.rglob("*"))
        return len(log.commits), len(log.entries), self.world.etcd.overrides, list(self.tokens.kept), files

    def restore(self) -> None:
        """Again with the one job, and nothing said of nodes and shards."""
        jobs = self.admin.list_jobs(JobFilter())
        others = [job for job in jobs if (job.table, job.name) != (self.table, KEPT)]
        self.admin.change(
            [JobChange(ChangeVerb.UNREGISTER, JobName(job.table_id, job.name, job.account)) for job in others]
        )
        if len(others) == len(jobs):
            self._register()
        else:
            self.admin.change([JobChange(ChangeVerb.RESUME, JobName(self.table, KEPT))])
        overrides = self.world.etcd.overrides
        for node_id in overrides.closed:
            self.operator.change_node(NodeVerb.UNCORDON, node_id)

    def _register(self) -> None:
        spec = JobSpec(ConsumerSpec("replica", str(self.lake / "copy"), ("id",)))
        self.admin.register([RegisterRequest(JobName(self.table, KEPT), spec.to_json())])
        until(lambda: self.world.runs(self.table_id))

    def close(self) -> None:
        self.server.stop(grace_s=0)
        self.world.close()


def _build(table_id: str) -> JobBuild:
    """The job KEPT is being built, in two ranges."""
    plan = BuildPlan("id", DEFAULT_ACCOUNT, table_id, KEPT, "/orders", 1, "{}", 0, 1)
    tasks = (BuildTask(f"{each}", TaskType.BUILD_RANGE, False, table_id, "id", each, "n-1") for each in (2, 3))
    return JobBuild(plan, BuildStage.BUILDING, tuple(tasks), began_at_s=1.0)


def _feeds(clock: Clock) -> NodeFeeds:
    return NodeFeeds(feed_pages(clock, EnvironmentFailpoints({})), feed_turns(clock), clock)


def _refuse_trigger(trigger: TriggerSpec) -> None:
    if trigger.name:
        raise InvalidRequest(f"{trigger.name!r} is not allowed", about="spec.trigger.name", remedy="Allow it")
