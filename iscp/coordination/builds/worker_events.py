"""The events that a node's build worker takes, and the effects that it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iscp.coordination.builds.build_state import Change
from iscp.core.build.build_task import RangeBatch, StagingBatch
from iscp.core.values.errors import IscpError
from iscp.core.values.progress import UNCOUNTED, TableSize


@dataclass(frozen=True, slots=True)
class TasksRead:
    """All that etcd has of builds, as changes of nothing; what the worker has seen before counts no more."""

    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class TasksChanged:
    """The tasks changed; the changes are in the order in which they were written."""

    changes: Sequence[Change]


@dataclass(frozen=True, slots=True)
class WorkRequested:
    """An owner wants these tasks, all of one range, to be worked on, and waits; `number` names its call.

    A task that keeps commits is of the whole.
    """

    number: int
    owner_rev: int
    range_id: int
    task_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """The call is over: its owner no longer waits. Work that was begun goes on."""

    number: int


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """A batch has ended. If `fault` is None, every part of it is durable; `size` is what its range has of the source,
    or the size of what was retained.
    """

    number: int
    fault: IscpError | None = None
    size: TableSize = UNCOUNTED


BuildWorkerEvent = TasksRead | TasksChanged | WorkRequested | WaitEnded | BatchEnded


@dataclass(frozen=True, slots=True)
class RunBatch:
    """Run a batch; BatchEnded answers when it has stopped, however it ends."""

    number: int
    batch: RangeBatch | StagingBatch


@dataclass(frozen=True, slots=True)
class CancelBatch:
    number: int


@dataclass(frozen=True, slots=True)
class AnswerWork:
    """Answer a call: these tasks are finished, and none of its others is to be worked on any more.

    `finished` has what each task's range has of the source, by task id.
    """

    number: int
    finished: Mapping[str, TableSize]


@dataclass(frozen=True, slots=True)
class RefuseWork:
    number: int
    fault: IscpError


BuildWorkerEffect = RunBatch | CancelBatch | AnswerWork | RefuseWork
