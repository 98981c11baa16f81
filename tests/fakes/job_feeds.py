"""Jobs that write feeds, as a node without Spark serves them: real tables, read by the real service."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from iscp import changefeed
from iscp.cluster.read_services import NodeFeeds, feed_turns
from iscp.consumers.changefeed.feed_pages import JobFeedPages
from iscp.engine.account_turns import ANYWHERE, PlaceGuard
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.ids import JobKey
from iscp.server.admin.admin_server import FeedServer
from iscp.server.admin.forwarding import Forwarding, OwnersJobs
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock
from tests.fakes.admin import FakeAdmin

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
TABLE, NAME = "/lake/orders", "feed"


def feed_row(target: Path | str, job_id: str = "id-feed", kind: str = "changefeed") -> JobRow:
    spec = JobSpec(ConsumerSpec(kind, str(target), ("id",)))
    return JobRow(JobKey("acme", "t-1", NAME), job_id, spec.to_json(), TABLE, TABLE)


def create(uri: Path, shards: int = 2) -> changefeed.Changefeed:
    changefeed.create(uri, SCHEMA, shards=shards, key=["id"])
    return changefeed.open(uri)


def append(feed: changefeed.Changefeed, *ids: int, shard: int | None = None) -> None:
    """Append a change for each id, to the shard of its number unless one is named."""
    for each in ids:
        feed.append(each % feed.shards if shard is None else shard, [{"id": each, "name": f"n{each}"}])


def register(admin: FakeAdmin, target: Path | str, kind: str = "changefeed", name: str = NAME) -> None:
    """Register a job of the account `acme` on TABLE."""
    spec = JobSpec(ConsumerSpec(kind, str(target), ("id",)))
    admin.register([RegisterRequest(JobName(TABLE, name, "acme"), spec.to_json())])


def feed_server(admin: FakeAdmin, forwarding: Forwarding | None = None, places: PlaceGuard = ANYWHERE) -> FeedServer:
    clock = SystemClock()
    pages = JobFeedPages(clock, EnvironmentFailpoints({}))
    service = NodeFeeds(pages.page, feed_turns(clock), clock, places)
    return FeedServer(service, OwnersJobs(admin, forwarding or Forwarding(lambda: None)).job)
