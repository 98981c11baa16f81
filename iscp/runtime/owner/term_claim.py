"""Claims a term in the job log, and loads what it begins with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from iscp.coordination.jobs.book_change import by_shard
from iscp.coordination.protocol.overrides import Overrides
from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import NotOwner
from iscp.core.values.ids import ShardId
from iscp.core.values.members import Moment, NodeRecord
from iscp.ports.cluster import ClusterPorts
from iscp.ports.job_log import JobLog


@dataclass(frozen=True, slots=True)
class ClaimedTerm:
    """A term that is minted: `owner_rev` is its number in the log. `wanted`: the jobs of each shard."""

    joblog: JobLog
    owner_rev: int
    rows: Sequence[JobRow]
    wanted: Mapping[ShardId, tuple[JobRow, ...]]
    hold_s: float
    overrides: Overrides
    members: tuple[NodeRecord, ...]
    members_at: Moment


def claim_term(open_log: Callable[[], JobLog], cluster: ClusterPorts, still_leads: Callable[[], bool]) -> ClaimedTerm:
    """Raises TemporaryError, also where the election was lost meanwhile.

    The log is claimed before anything is read: what is read then cannot be changed by a former owner any more.
    """
    joblog = open_log()
    owner_rev = joblog.claim_term()
    rows = joblog.load()
    hold_s, overrides = cluster.membership.hold_s(), cluster.overrides.load()
    members, members_at = cluster.membership.members()
    if not still_leads():
        # Frozen for a while, it has overtaken who leads by now. Whatever it took in would be read by nobody,
        # until that one writes and sees that it has to claim again.
        raise NotOwner("the election was lost during the claim")
    return ClaimedTerm(joblog, owner_rev, rows, by_shard(rows), hold_s, overrides, members, members_at)
