"""The ports of the coordination to the world: who is there, who leads, and a way to send."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from iscp.model.api.api_requests import EventView, LogPage, LogQuery
from iscp.model.build.build_state import BuildState, Change
from iscp.model.job.iteration import JobMaintenance
from iscp.model.job.start_rule import VerifyReport
from iscp.model.values.errors import IscpError
from iscp.model.values.ids import Leader, Moment, NodeRecord, ShardId
from iscp.model.values.progress import RunProgress, TableSize
from iscp.model.values.ring import Overrides


class Lease(Protocol):
    """A lease that is renewed; all times are of the monotonic clock that the node uses."""

    @property
    def lease_id(self) -> int: ...

    @property
    def gone(self) -> bool:
        """Return whether it has ended and never comes back; until then a renewal may still succeed."""

    def confirmed_until_s(self) -> float:
        """Return until when writes are safe: the time of sending the last confirmed renewal + TTL - margin."""


class MemberControl(Protocol):
    """The members, as an owner reads them. Raises Unavailable if etcd does not answer."""

    def members(self) -> tuple[tuple[NodeRecord, ...], Moment]:
        """Return who is registered, sorted, and at which moment of etcd."""

    def revoke(self, record: NodeRecord, put_fenced: Callable[[str, bytes, int], object]) -> None:
        """End another node's lease (the owner, of a node that does not answer), and leave a trace of it before.

        `put_fenced` writes the trace (key, value, lease) as this owner and none other: then the next one sees it.
        """

    def hold_s(self) -> float:
        """Revoke surely what former owners began to; for how long such a node may still write, at the most."""


class Membership(MemberControl, Protocol):
    """The membership of the cluster. Raises Unavailable if etcd does not answer."""

    def register(self, record: NodeRecord, on_lapsed: Callable[[], None] | None = None) -> Lease:
        """Register under a new lease; raises ConfigurationError if the name is taken by a live node, and Conflict if a
        namesake has had the record's epoch since that was drawn.

        `on_lapsed` is called, from the renewing thread, each time when it can no longer be confirmed.
        """

    def deregister(self) -> None: ...

    def watch(self, on_change: Callable[[tuple[NodeRecord, ...], Moment], None]) -> Callable[[], None]:
        """Call back with snapshots as of `members`, coalesced, the first at once; the result ends the watch.

        A snapshot for which `on_change` raised is delivered again, or a later one.
        """

    def next_epoch(self, node_id: str, above: int = 0) -> int:
        """Return a number greater than any under which this node id ever registered, and than `above` (etcd may have
        been restored).
        """

    def leave(self) -> None:
        """Say that this node stops in order, and that others are to have what it runs."""

    def lease_ages_s(self, records: Sequence[NodeRecord]) -> dict[str, float]:
        """Return the seconds since each node's lease was renewed, by node id, as far as known."""


class ElectionKey(Protocol):
    """The key that says who leads. Raises Unavailable where etcd does not answer."""

    def leader(self) -> Leader | None:
        """Return the leader, by a linearizable read of the election key."""

    def put_fenced(self, leader: Leader, key: str, value: bytes, lease_id: int) -> int:
        """Write as this owner and none other; raises NotOwner, OutcomeUnknown (it may be repeated)."""

    def confirmed_until_s(self, revision: int) -> float:
        """Return until when (monotonic) nobody can have followed this node, which was elected by that revision."""

    def give_way(self, revision: int) -> None:
        """Resign where this node leads by that revision, and stand again behind all that wait; never waits."""


class Election(ElectionKey, Protocol):
    """One owner at a time, as far as etcd knows; the job log's fence makes it certain."""

    def campaign(self, node_id: str, on_elected: Callable[[Leader], None], on_lost: Callable[[], None]) -> None:
        """Run for owner until closed; both callbacks come from one thread, in order."""

    def resign(self) -> None: ...


class OverrideStore(Protocol):
    """The operators' decisions on nodes and shards, stored outside all nodes. Raises Unavailable."""

    def load(self) -> Overrides: ...

    def save(self, leader: Leader, before: Overrides, after: Overrides) -> None:
        """Write what differs, as this owner and none other; raises NotOwner, OutcomeUnknown (it may be repeated)."""


class CheckpointStore(Protocol):
    """The global checkpoint, stored outside all nodes. Raises Unavailable."""

    def load(self) -> float:
        """Return the Unix time; 0 before there is one."""

    def save(self, leader: Leader, at_s: float) -> None:
        """Save as this owner and none other. Raises NotOwner, OutcomeUnknown."""


class LogMarks(Protocol):
    """The marks of the job log that are stored outside it, for when it is lost or cannot be claimed. Raises
    Unavailable.
    """

    def load(self) -> int:
        """Return a version that the log has reached; 0: there was one; -1: nothing is known of any."""

    def save(self, leader: Leader, version: int) -> None:
        """Save as this owner and none other. Raises NotOwner, OutcomeUnknown (it may be repeated)."""

    def fault(self) -> IscpError | None:
        """Return why the owner cannot claim the log, as it has reported it."""

    def report_fault(self, leader: Leader, fault: IscpError | None) -> None:
        """Report the fault as `save` does; it is gone with the owner's candidacy. None: it is over."""


class BuildStore(Protocol):
    """The store of builds: `load`, `write` and `is_current` are called from one thread at a time."""

    def load(self) -> BuildState:
        """Return all that is there, of one moment. Raises Unavailable."""

    def write(self, leader: Leader, changes: Sequence[Change]) -> None:
        """Write all changes or none, as this owner and none other, on top of what was loaded or written last.

        Raises NotOwner, Conflict (another write has come first: load again), OutcomeUnknown (load again).
        """

    def is_current(self) -> bool:
        """Return whether what was loaded or written last is still what was written last. Raises Unavailable."""

    def watch(
        self, on_read: Callable[[Sequence[Change]], None], on_changed: Callable[[Sequence[Change]], None]
    ) -> Callable[[], None]:
        """Call back with all that is there, then with each transaction's changes; the result ends the watch.

        After an interruption all is read again.
        """


BuildAnswer = Mapping[str, TableSize] | IscpError
"""The tasks that a node has finished, by their ids, with what each one's range has of the source; or why it has not."""


class NodeCalls(Protocol):
    """The owner's calls to the node that runs a shard, beside the messages. Raises Unavailable if it is away."""

    def notify(self, shard: ShardId, targets: bool) -> None:
        """Note that the shard's source may have changed, or its `targets` too."""

    def interrupt(self, shard: ShardId, job_id: str, spec_json: str) -> None:
        """End what runs of this job by another spec, now or as soon as this one is there."""

    def verify(
        self, shard: ShardId, job_id: str, repair: bool, timeout_s: float, alive: Callable[[], bool]
    ) -> VerifyReport:
        """Compare the job's target with its source; given up after `timeout_s`, or when `alive` says so.

        Raises TimedOut, OutcomeUnknown of a repair, and what the comparison has raised.
        """

    def maintenance(self, job_id: str) -> JobMaintenance:
        """Return how the refreshes of the job and the purges of its table go there; empty if the job is not the
        node's.
        """

    def progress(self, job_id: str) -> RunProgress | None:
        """Return how far the iteration that the job is in has come; None if it is in none, or nothing is known yet."""

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        """Have these tasks of a build worked on, all of one range; the result ends the wait for them.

        `answered` is called once, by any thread, also before this returns: with those that are finished, when there is
        no other to wait for, or with nothing where that takes longer than WORK_WAIT_S. Never raises.
        """

    def counters(self) -> dict[str, int]:
        """Return the executor's counts, and others of the node's."""

    def events(self, known: Sequence[int]) -> list[EventView]:
        """Return the events that the node remembers of owners' terms that are not `known`, the oldest first."""

    def logs(self, query: LogQuery) -> LogPage:
        """Return lines of the node's log."""


WORK_WAIT_S = 30.0
"""Seconds that a node lets an owner wait for tasks of a build; then the owner calls again, and what was begun goes
on.
"""


@dataclass(frozen=True, slots=True)
class ClusterPorts:
    """The ports of an owner to what the nodes of a cluster share."""

    membership: MemberControl
    election: ElectionKey
    overrides: OverrideStore
    checkpoints: CheckpointStore
    marks: LogMarks
