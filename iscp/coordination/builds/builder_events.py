"""The events that the owner's builder takes, and the effects that it gives.

Effects are carried out in their order, and only writes, loads and checks one after the other: each is answered before
the next one comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iscp.coordination.builds.build_state import BuildPlace, BuildState, Change
from iscp.coordination.membership.preferred_nodes import Placement
from iscp.core.build.build_task import BuildPlan
from iscp.core.values.errors import ErrorCode
from iscp.core.values.progress import TableSize


@dataclass(frozen=True, slots=True)
class BuildWanted:
    """A job wants this build. That it says so again once it is built shows that it does not find all of it."""

    plan: BuildPlan


@dataclass(frozen=True, slots=True)
class BuildOver:
    """The job was dropped or paused, or has published: it wants no build, at least for now."""

    job_id: str


@dataclass(frozen=True, slots=True)
class JobsMoved:
    """Jobs on this table have moved since it was seen: how far the slowest has come is yet to be reported."""

    table_id: str


@dataclass(frozen=True, slots=True)
class NodesPlaced:
    """The nodes are placed. `staying` are those that may go on with what they have, as they are there and neither leave
    nor drain.
    """

    placement: Placement
    staying: frozenset[str]


@dataclass(frozen=True, slots=True)
class BuildsLoaded:
    """The builds were loaded from etcd; the state is the builder's own from now on."""

    number: int
    state: BuildState


@dataclass(frozen=True, slots=True)
class BuildsWritten:
    """Etcd has what was written, or, of a check, still has what was loaded or written last."""

    number: int


@dataclass(frozen=True, slots=True)
class BuildsUnknown:
    """The load, the write or the check failed, or etcd has something else.

    The written changes may be there or not, or come later.
    """

    number: int


@dataclass(frozen=True, slots=True)
class RangeAnswered:
    """A node has answered a call: these of its tasks are finished; of each, what its range has of the source."""

    number: int
    finished: Mapping[str, TableSize]


@dataclass(frozen=True, slots=True)
class RangeFailed:
    """A call has failed, or a batch at the node."""

    number: int
    fault: str
    code: int = ErrorCode.UNAVAILABLE


@dataclass(frozen=True, slots=True)
class SplitRange:
    table_id: str
    range_id: int


@dataclass(frozen=True, slots=True)
class MergeRange:
    """Put the halves of this range together."""

    table_id: str
    range_id: int


@dataclass(frozen=True, slots=True)
class Prioritize:
    table_id: str
    priority: int


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A `TableSeen` is what is known of a table, no earlier than the BuildOver that came before.

    `newest`: its version when it was probed (-1: it was not yet). `applied`: how far the last of its jobs that tail has
    come (None: none tails), at `table_uri`. `repair`: the newest repair that one of them had not applied (0: none).
    """

    table_id: str
    newest: int
    applied: int | None
    repair: int = 0
    table_uri: str = ""

    @property
    def repaired(self) -> bool:
        """Return whether a job that tails has not yet applied a repair."""
        return self.applied is not None and self.repair > self.applied


@dataclass(frozen=True, slots=True)
class BuildTick:
    pass


BuilderEvent = (
    BuildWanted
    | BuildOver
    | JobsMoved
    | NodesPlaced
    | BuildsLoaded
    | BuildsWritten
    | BuildsUnknown
    | RangeAnswered
    | RangeFailed
    | SplitRange
    | MergeRange
    | Prioritize
    | TableSeen
    | BuildTick
)


@dataclass(frozen=True, slots=True)
class LoadBuilds:
    number: int


@dataclass(frozen=True, slots=True)
class WriteBuilds:
    """Write changes in one transaction, which fails if another has written since the last load or write."""

    number: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class CheckBuilds:
    """Check that etcd still has what was loaded or written last."""

    number: int


@dataclass(frozen=True, slots=True)
class CallNode:
    """Have the node work on these tasks, all of one place and `BuildPlan.reading`, and wait for what it finishes."""

    number: int
    owner_rev: int
    place: BuildPlace
    task_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CancelCall:
    number: int


@dataclass(frozen=True, slots=True)
class NotifyBuilt:
    """Nothing is left to be done for the job: it may publish."""

    plan: BuildPlan


@dataclass(frozen=True, slots=True)
class ShowFault:
    """Show in the job's status why its build does not go on; with OK it goes on again."""

    job_id: str
    code: int
    fault: str = ""


BuilderEffect = LoadBuilds | WriteBuilds | CheckBuilds | CallNode | CancelCall | NotifyBuilt | ShowFault
