"""The ports behind the gRPC services `Operator` and `Builds`: what operators want of nodes, shards and builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from iscp.core.api.api_requests import JobName, NodeVerb, ShardVerb
from iscp.core.api.api_views import ConsumerInfo, EventView, PlacedShard
from iscp.core.api.log_lines import LogPage, LogPlace, LogQuery
from iscp.core.build.api_builds import BuildView


class OperatorService(Protocol):
    """All methods raise IscpError: InvalidRequest before anything is written, NotOwner, Unavailable."""

    def change_node(self, verb: NodeVerb, node_id: str) -> tuple[bool, int]:
        """Change a node, and return whether anything has changed, and how many shards the node has.

        Raises InvalidRequest for a node that nobody knows, and for a drain that would leave no node.
        """

    def change_shards(self, verb: ShardVerb, table: str, range_id: int, node_id: str) -> int:
        """Change the table's shards (`range_id` 0: all), and return how many of them were not so already.

        Raises TableNotFound; InvalidRequest for a node that is unknown, or that takes no shards.
        """

    def reshard(self, merge: bool, table: str, range_id: int, request_id: str) -> int:
        """Split ranges of the table (0: all), or merge pairs of them (0: the smallest), and return how many it has
        then.

        A request repeated under the same `request_id` is done once. Raises TableNotFound; InvalidRequest if the table
        has a job that cannot be split, or there is no such range.
        """

    def rebalance(self, dry_run: bool) -> list[PlacedShard]:
        """Return what is elsewhere than it should be, which begins to move unless `dry_run`."""

    def placement(self, table: str, account: str = "") -> list[PlacedShard]:
        """Return the shards of a table, or (empty) of all, with jobs of the account, or (empty) any. Raises
        TableNotFound.
        """

    def events(
        self,
        owner_rev: int,
        number: int,
        wait_s: float,
        alive: Callable[[], bool],
        table: str = "",
        account: str = "",
    ) -> list[EventView]:
        """Return the events that came after that number of that term, in later terms too; waits until there is one.

        If `table` is given, only decisions on its shards are returned, and if `account` is given, those on tables that
        have jobs of it. Raises TableNotFound.
        """

    def node_logs(self, node_id: str, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Return lines of the node's log, after the place that `after` has for it. Raises InvalidRequest if there is no
        such node.
        """

    def job_logs(self, job: JobName, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Return the lines of all nodes that are about the job; a page for each node. Raises JobNotFound,
        TableNotFound.
        """

    def consumers(self) -> Sequence[ConsumerInfo]:
        """Return the kinds of consumer that are allowed, by their names. No code of theirs is run for that."""


class BuildAdmin(Protocol):
    """All raise IscpError: InvalidRequest and TableNotFound before anything is changed, NotOwner, Unavailable."""

    def builds(self, table: str, account: str = "") -> list[BuildView]:
        """Return the builds of a table, or (empty) of all, and of an account, or (empty) of all; none if there are
        none.
        """

    def abort(self, job: JobName) -> int:
        """Pause the job, or (an empty name) all jobs of the table that are being built, and return how many tasks end
        by that.

        Ranges that are staged already are retained, for when the job is resumed. Raises JobNotFound; InvalidRequest if
        nothing is left to be built.
        """

    def prioritize(self, table: str) -> bool:
        """Build the table before all others that wait; False where it is its turn already, or its turn is next.

        Raises InvalidRequest where nothing of it is to be built.
        """

    def split(self, table: str, range_id: int) -> int:
        """Cut a range of the builds of the table in two, or (0) all; how many are still to be built then.

        Raises InvalidRequest where there is no such range, or it cannot be cut.
        """

    def merge(self, table: str, range_id: int) -> int:
        """Put a range together with its other half, or (0) all pairs of the smallest; how many there are then.

        Raises InvalidRequest where the two are not both still to be built.
        """
