"""The owner's answers to users, put together as a node does."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iscp.cluster.owner.checkpoint_saver import ProgressSignal
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.node_clients import NodeClients
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.read_services import SourceReleases
from iscp.cluster.requests.job_maker import JobMaker
from iscp.cluster.requests.job_views import DeadLetterReader, FigureReader, JobViews, JobWaiter
from iscp.cluster.requests.request_validator import RequestValidator
from iscp.model.api.api_requests import ClusterView
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import TriggerSpec
from iscp.model.values.errors import IscpError
from iscp.ports.consumer import ConsumerKind
from iscp.ports.source import Catalog, NothingHeld, RetentionHold
from iscp.ports.system import Clock
from iscp.server.admin.admin_service import OwnerAdmin


def owner_admin(
    owner: OwnerLoop,
    catalog: Catalog,
    kinds: Callable[[str], ConsumerKind],
    clock: Clock,
    nodes: NodeClients,
    cluster: Callable[[LogWriter], ClusterView],
    moved: ProgressSignal | None = None,
    check_trigger: Callable[[TriggerSpec], None] = lambda trigger: None,
    target_fault: Callable[[Sequence[JobRow]], IscpError | None] = lambda rows: None,
    intake: RequestValidator | None = None,
    holds: RetentionHold | None = None,
) -> OwnerAdmin:
    intake = intake or RequestValidator(JobMaker(catalog, kinds, check_trigger, clock))
    views = JobViews(owner, nodes, kinds, clock, FigureReader(kinds).read)
    waiter = JobWaiter(owner, nodes, catalog, views, clock, moved or ProgressSignal(), target_fault)
    releases = SourceReleases(holds or NothingHeld(), kinds)
    return OwnerAdmin(owner, catalog, intake, views, waiter, nodes, cluster, releases, DeadLetterReader(kinds).read)
