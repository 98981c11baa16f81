"""Read lines of the nodes' logs for users: of one node, or what all nodes have logged of one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iscp.core.api.api_requests import JobName
from iscp.core.api.log_lines import JobOfLines, LogPage, LogPlace, LogQuery
from iscp.core.values.errors import InvalidRequest
from iscp.runtime.admin.job_lookup import JobLookup
from iscp.runtime.owner.node_clients import NodeClients
from iscp.runtime.owner.owner_loop import OwnerLoop


class LogReader:
    """A query's `after` and `job` are set here; it gives the rest."""

    def __init__(self, owner: OwnerLoop, nodes: NodeClients, lookup: JobLookup) -> None:
        self._owner = owner
        self._nodes = nodes
        self._lookup = lookup

    def of_node(self, node_id: str, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Raises InvalidRequest where there is no such node, NotOwner."""
        self._owner.current_writer()
        records = [record for record in self._owner.members if record.node_id == node_id]
        if not records:
            there = ", ".join(sorted(record.node_id for record in self._owner.members)) or "none"
            raise InvalidRequest(f"there is no node {node_id!r}", about="node", remedy=f"The nodes are: {there}")
        return self._nodes.logs(records, lambda node_id: replace(query, after=after.get(node_id)))

    def of_job(self, job: JobName, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Raises JobNotFound, TableNotFound, NotOwner."""
        row = self._lookup.row(self._owner.current_writer(), job)
        tables = tuple(dict.fromkeys((row.key.table_id, row.table_name, row.table_uri)))
        wanted = replace(query, job=JobOfLines(row.job_id, row.key.job_name, row.key.account, tables))
        return self._nodes.logs(self._owner.members, lambda node_id: replace(wanted, after=after.get(node_id)))
