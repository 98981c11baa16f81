"""Nodes of the release before (tests/data/release-before) and of this one, in one cluster, and jobs that both run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from zipfile import ZipFile

from deltalake import DeltaTable

from iscp.app.settings import load_settings
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys, snapshot_of
from iscp.model.api.api_requests import JobView
from iscp.model.settings.config import NodeConfig
from iscp.system.threads import SystemClock
from tests.e2e.evidence import assert_feed_holds, assert_in_order
from tests.e2e.harness import Job, append, delete, read, upsert
from tests.e2e.load import Load
from tests.e2e.many_nodes import ManyNodes
from tests.e2e.writer import events, orders

BEFORE = Path(__file__).parents[1] / "data/release-before"
UNKNOWN_BEFORE = "ISCP_ETCD__ACCEPT_FAULTY_RELEASE"
BARE_NODE = BEFORE / "bare_node.txt"
"""That release's `benchmarks/bare_node.py`."""

SETTLED_S = 600.0
"""Nodes begin again and again, and each computes with Spark what it takes over."""

VIEWS = {
    "total": "SELECT count(*) AS n, sum(amount) AS s, max(amount) AS m FROM orders",
    "texts": "SELECT o.id, e.text FROM orders o JOIN events e ON o.id = e.at",
    "per_state": "SELECT state, count(*) AS n, sum(amount) AS s FROM orders GROUP BY state",
    "top": "SELECT state, sum(amount) AS s FROM orders GROUP BY state ORDER BY s DESC, state LIMIT 2",
}
"""An aggregate, a join, groups, and groups below a limit: what is kept of each differs."""


def unpack_release_before(to: Path) -> dict[str, str]:
    """The variables of a process that is to have it in place of this tree's; of an empty one it has none."""
    (wheel,) = BEFORE.glob("*.whl")
    with ZipFile(wheel) as files:
        files.extractall(to)
    return {"PYTHONPATH": str(to), UNKNOWN_BEFORE: ""}


def wire_formats(etcd: EtcdSettings, prefix: str) -> set[int]:
    """Those of the nodes that are registered."""
    with EtcdClient(etcd, SystemClock()) as client:
        return {node.wire_format for node in snapshot_of(client.list_prefix(Keys(prefix).nodes).items)}


def log_formats(log: Path) -> list[str]:
    """Those of the job log and, if it is there, of the history."""
    tables = [log / name for name in ("iscp_log", "iscp_history")]
    there = [DeltaTable(str(table)) for table in tables if table.is_dir()]
    return [table.metadata().configuration["iscp.format"] for table in there]


@dataclass
class TwoReleases(ManyNodes):
    """`begin_before` starts a node of the release before, `begin` one of this."""

    before: dict[str, str] = field(init=False)
    _of_before: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ports = replace(self.ports, pages=())  # the release before serves no page
        self.before = unpack_release_before(self.root / "release-before")

    def settle(self, job: Job, version: int | None = None, timeout_s: float = SETTLED_S) -> JobView:
        return super().settle(job, version, timeout_s)

    def wait_ready(self, node_id: str, timeout_s: float = SETTLED_S) -> None:
        super().wait_ready(node_id, timeout_s)

    def config_of(self, config: NodeConfig) -> NodeConfig:
        if config.node_id not in self._of_before:
            return config
        return replace(config, etcd=replace(config.etcd, accept_faulty_release=False))  # left out as a default

    def begin_before(self, node_id: str) -> None:
        self._of_before.add(node_id)
        self.begin(node_id, **self.before)
        self._of_before.remove(node_id)

    def replace(self, node_id: str, *, before: bool = False) -> None:
        """Stop the node in order, and start it of the other release."""
        assert self.members[node_id].stop() == 0
        if before:
            self.begin_before(node_id)
        else:
            self.begin(node_id)
        self.wait_ready(node_id)

    @property
    def wire_formats(self) -> set[int]:
        """Those of the nodes that are registered."""
        config = load_settings(self.layout.config("iscp-0"), {})
        return wire_formats(EtcdSettings.of(config.etcd), config.etcd_prefix)


class Derived:
    """Jobs on two tables: each of `Load`, a changefeed, and of `views` those that it names."""

    def __init__(self, nodes: TwoReleases, views: Collection[str] = ()) -> None:
        self.nodes = nodes
        self.load = Load.make(nodes)
        self.orders, self.events = self.load.full.source, self.load.appended.source
        self.feed = self._job("feed")
        self.views = {name: self._job(name) for name in views}

    def _job(self, name: str) -> Job:
        return Job(self.orders, name, f"{self.nodes.derived}/{name}")

    @property
    def jobs(self) -> list[Job]:
        return [*self.load.jobs, self.feed, *self.views.values()]

    def register(self) -> None:
        client = self.nodes.client
        self.load.register()
        client.register(self.orders, "feed", consumer="changefeed", target=self.feed.target, key=["id"])
        for name, job in self.views.items():
            read_by = {table: uri for table, uri in self._tables.items() if f" {table}" in VIEWS[name]}
            client.create_view(name, VIEWS[name], target=job.target, tables=read_by, refresh="incremental")

    @property
    def _tables(self) -> dict[str, str]:
        return {"orders": self.orders, "events": self.events}

    def change(self, seed: int) -> None:
        """Rows come, change and go."""
        chance = random.Random(seed)
        upsert(self.orders, orders(list(range(10 * seed, 10 * seed + 25)), chance), ["id"])
        delete(self.orders, f"id = {10 * seed + chance.randrange(25)}")
        append(self.events, events(1_000 * seed, 3))

    def assert_right(self) -> None:
        """Each target equals its recomputation, and each seq is there once."""
        self.load.assert_right()
        rows, texts = read(self.orders), read(self.events)
        for job in (self.feed, *self.views.values()):
            self.nodes.settle(job)
            assert_in_order(job.target)
        assert_feed_holds(self.feed.target, rows)
        groups = rows.group_by("state").aggregate([("id", "count"), ("amount", "sum")])
        groups = groups.rename_columns(["state", "n", "s"])
        top = sorted(groups.to_pylist(), key=lambda row: (-row["s"], row["state"]))[:2]
        amounts = rows["amount"].to_pylist()
        wanted = {
            "per_state": Counter((row["state"], row["n"], row["s"]) for row in groups.to_pylist()),
            "total": Counter([(len(amounts), sum(amounts), max(amounts))]),
            "top": Counter((row["state"], row["s"]) for row in top),
            "texts": Counter(
                (row["id"], text["text"])
                for row in rows.to_pylist()
                for text in texts.to_pylist()
                if row["id"] == text["at"]
            ),
        }
        for name, job in self.views.items():
            assert Counter(tuple(row.values()) for row in read(job.target).to_pylist()) == wanted[name], name

    def assert_done_once(self) -> None:
        """No two nodes have done the same."""
        for job in self.jobs:
            entries = self.nodes.client.history(job.source, job.name, limit=10_000)
            done = {(entry.job_id, entry.seq, entry.node_id) for entry in entries if not entry.error_code}
            assert len({(job_id, seq) for job_id, seq, _ in done}) == len(done)
