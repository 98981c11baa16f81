"""An OperatorService in memory: two nodes and one table, which obey."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from iscp.model.api.api_requests import (
    ConsumerInfo,
    EventView,
    JobName,
    LogPage,
    LogPlace,
    LogQuery,
    NodeVerb,
    PlacedShard,
    ShardVerb,
)
from iscp.model.values.errors import InvalidRequest

NODES = ("n-1", "n-2")


@dataclass
class FakeOperator:
    """`held` is what `drain` answers, each time one less; `terms` are the events of each call, in the end the last."""

    shard: PlacedShard = field(
        default_factory=lambda: PlacedShard("t-1", 1, "/t", "running", "n-1", "n-1", "", "n-1", "")
    )
    closed: set[str] = field(default_factory=set)
    held: int = 2
    reshards: list[tuple[bool, str, int, str]] = field(default_factory=list)
    terms: list[list[EventView]] = field(default_factory=list)
    logs: list[list[LogPage] | BaseException] = field(default_factory=list)
    queries: list[tuple[LogQuery, dict[str, LogPlace]]] = field(default_factory=list)
    jobs: list[JobName] = field(default_factory=list)
    asked: list[tuple[int, int, float]] = field(default_factory=list)
    tables: list[str] = field(default_factory=list)
    kinds: list[ConsumerInfo] = field(default_factory=list)

    def change_node(self, verb: NodeVerb, node_id: str) -> tuple[bool, int]:
        self._check(node_id)
        was = node_id in self.closed
        if verb is NodeVerb.UNCORDON:
            self.closed.discard(node_id)
            return was, self.held
        self.closed.add(node_id)
        self.held -= verb is NodeVerb.DRAIN and was
        return not was, self.held

    def change_shards(self, verb: ShardVerb, table: str, range_id: int, node_id: str) -> int:
        before = self.shard
        if verb is not ShardVerb.UNPIN:
            self._check(node_id)
        self.shard = replace(before, pinned=before.pinned if verb is ShardVerb.MOVE else node_id)
        if node_id:
            self.shard = replace(self.shard, node_id=node_id, target=self.shard.pinned or "n-1")
        return int(self.shard != before)

    def reshard(self, merge: bool, table: str, range_id: int, request_id: str) -> int:
        self.reshards.append((merge, table, range_id, request_id))
        return 1 if merge else 2

    def rebalance(self, dry_run: bool) -> list[PlacedShard]:
        moves = [self.shard] if self.shard.node_id != self.shard.target else []
        if not dry_run:
            self.shard = replace(self.shard, node_id=self.shard.target)
        return moves

    def placement(self, table: str, account: str = "") -> list[PlacedShard]:
        return [self.shard]

    def events(
        self,
        owner_rev: int,
        number: int,
        wait_s: float,
        alive: Callable[[], bool],
        table: str = "",
        account: str = "",
    ) -> list[EventView]:
        self.asked.append((owner_rev, number, wait_s))
        self.tables.append(table)
        return self.terms.pop(0) if len(self.terms) > 1 else list(self.terms[0] if self.terms else ())

    def consumers(self) -> list[ConsumerInfo]:
        return self.kinds

    def node_logs(self, node_id: str, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        self._check(node_id)
        return self._answer(query, after)

    def job_logs(self, job: JobName, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        self.jobs.append(job)
        return self._answer(query, after)

    def _answer(self, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        self.queries.append((query, dict(after)))
        answer = self.logs.pop(0) if self.logs else []
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _check(self, node_id: str) -> None:
        if node_id not in NODES:
            raise InvalidRequest(f"there is no node {node_id!r}", about="node", remedy=f"The nodes are: {NODES}")
