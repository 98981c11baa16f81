"""Several real nodes with Spark, each of which can be killed, frozen, stopped and started again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Self

import pyarrow as pa
from deltalake import DeltaTable

from iscp.cli.node.local_cluster import choose_ports, healthy
from iscp.client.admin_client import Client
from iscp.model.build.build_state import range_name
from iscp.model.values.ring import Ring
from tests.e2e.harness import START_WAIT_S, Cluster, Process, wait_for


@dataclass
class ManyNodes(Cluster):
    """As Cluster, with `count` nodes; its client goes to whichever answers."""

    count: int = 3
    members: dict[str, Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.ports = choose_ports(self.layout, 0, self.count)

    def address(self, node_id: str) -> str:
        return f"127.0.0.1:{self.ports.nodes[int(node_id.rpartition('-')[2])]}"

    @property
    def client(self) -> Client:
        if self._client is None:
            addresses = (self.address(f"iscp-{number}") for number in range(self.count))
            self._client = Client(",".join(addresses), timeout_s=60.0)
        return self._client

    def start(self, **environ: str) -> None:
        """etcd and all nodes, ready to serve; `environ` goes to the nodes."""
        self.start_etcd()
        for number in range(self.count):
            self.begin(f"iscp-{number}", **environ)
        for node_id in self.members:
            self.wait_ready(node_id)

    def begin(self, node_id: str, **environ: str) -> None:
        """Start the node, whether or not the last one of that name ended well."""
        number = int(node_id.rpartition("-")[2])
        self.members[node_id] = self.spawn_node(node_id, self.ports, number, environ)

    def wait_ready(self, node_id: str, timeout_s: float = START_WAIT_S) -> None:
        def ready() -> bool:
            assert self.members[node_id].alive, f"{node_id} has ended: see {self.members[node_id].log}"
            return healthy(self.address(node_id))

        wait_for(f"{node_id} serves", ready, timeout_s)

    def spread_table(self, name: str, rows: pa.Table, ranges: Sequence[int]) -> str:
        """A new source table, as `table` makes it, whose ranges the ring gives to all nodes.

        Tables are known by ids that are drawn: of eight ranges all are one of two nodes' once in a hundred times.
        """
        names = {f"iscp-{number}" for number in range(self.count)}
        ring = Ring(names)
        for number in count():
            path = self.table(f"{name}-{number}", rows)
            table_id = str(DeltaTable(path).metadata().id)
            if {ring.preferred(range_name(table_id, each)) for each in ranges} == names:
                return path
        raise AssertionError

    def owner(self) -> str:
        return self.client.cluster().owner

    def holder(self, source: str) -> str:
        """The node that runs the table's shard."""
        (shard,) = self.client.operator.placement(source)
        return shard.node_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        for member in self.members.values():
            if member.alive:
                member.thaw()
                member.child.terminate()
        for member in self.members.values():
            member.stop()
        super().stop()
