"""A node's build worker, on a thread of its own; batches run on others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Protocol, assert_never

from iscp.coordination.builds.build_state import Change
from iscp.coordination.builds.build_worker import BuildWorker
from iscp.coordination.builds.worker_events import (
    AnswerWork,
    BatchEnded,
    BuildWorkerEffect,
    BuildWorkerEvent,
    CancelBatch,
    RefuseWork,
    RunBatch,
    TasksChanged,
    TasksRead,
    WaitEnded,
    WorkRequested,
)
from iscp.core.build.build_task import RangeBatch, StagingBatch
from iscp.core.values.errors import InvariantBroken, IscpError
from iscp.core.values.progress import UNCOUNTED
from iscp.ports.cluster import BuildAnswer, BuildStore
from iscp.ports.range_builder import RangeBuilder
from iscp.ports.system import Clock, Guard, Threads
from iscp.runtime.loop.inbox import Inbox, Turns
from iscp.runtime.loop.threads import THREADS

log = logging.getLogger(__name__)


class BatchGuard(Guard, Protocol):
    """Refuses every write once it is cancelled."""

    def cancel(self) -> None: ...


class BuildWorkerLoop:
    """The loop of a build worker. `guard` gives one for a batch that begins now. Each batch has a thread: the machine
    runs only so many at once.
    """

    _worker_of: type[BuildWorker] = BuildWorker

    def __init__(
        self,
        node_id: str,
        store: BuildStore,
        builder: RangeBuilder,
        guard: Callable[[], BatchGuard],
        clock: Clock,
        on_broken: Callable[[Exception], None],
        threads: Threads = THREADS,
    ) -> None:
        self._store = store
        self._builder = builder
        self._guard = guard
        self._threads = threads
        self._machine = self._worker_of(node_id)
        self._numbers = count(1)
        self._callers: dict[int, Callable[[BuildAnswer], None]] = {}
        self._guards: dict[int, BatchGuard] = {}
        self._unwatch: Callable[[], None] = lambda: None
        turns: Turns[BuildWorkerEvent] = Turns(self._take, lambda: None, lambda: None)
        self._inbox: Inbox[BuildWorkerEvent] = Inbox("iscp-build-worker", clock, turns, on_broken, threads=threads)

    def start(self) -> None:
        self._inbox.start()
        self._unwatch = self._store.watch(self._read, self._follow)

    def close(self) -> None:
        """Cancel what is being built, which ends soon; nobody is answered any more."""
        self._unwatch()
        self._inbox.close()
        for guard in list(self._guards.values()):
            self._cancel(guard)

    def work_on_build_tasks(
        self, owner_rev: int, range_id: int, task_ids: Sequence[str], answered: Callable[[BuildAnswer], None]
    ) -> Callable[[], None]:
        """Work on tasks as `NodeCalls.work_on_build_tasks` does, without an end to the wait."""
        number = next(self._numbers)
        self._callers[number] = answered
        self._inbox.post(WorkRequested(number, owner_rev, range_id, tuple(task_ids)))
        return partial(self._inbox.post, WaitEnded(number))

    def _read(self, changes: Sequence[Change]) -> None:
        self._inbox.post(TasksRead(changes))

    def _follow(self, changes: Sequence[Change]) -> None:
        self._inbox.post(TasksChanged(changes))

    # --- the loop's thread -------------------------------------------------------------------------------------

    def _take(self, event: BuildWorkerEvent) -> None:
        if isinstance(event, BatchEnded):
            self._guards.pop(event.number, None)
        for effect in self._machine.step(event):
            self._carry_out(effect)
        if isinstance(event, WaitEnded):
            self._callers.pop(event.number, None)

    def _carry_out(self, effect: BuildWorkerEffect) -> None:
        match effect:
            case RunBatch(number, batch):
                guard = self._guards[number] = self._guard()
                self._threads.thread("iscp-build", partial(self._run, number, batch, guard)).start()
            case CancelBatch(number):
                self._cancel(self._guards[number])
            case AnswerWork(number, finished):
                self._callers.pop(number)(finished)
            case RefuseWork(number, fault):
                self._callers.pop(number)(fault)
            case _:
                assert_never(effect)

    def _cancel(self, guard: BatchGuard) -> None:
        """The engine's work is stopped on a thread of its own: a JVM that hangs must not hang the node's builds."""
        guard.cancel()
        self._threads.thread("iscp-build-cancel", partial(self._stop_work, guard)).start()

    def _stop_work(self, guard: BatchGuard) -> None:
        try:
            self._builder.cancel(guard)
        except Exception:
            log.exception("build.cancel_failed")

    def _run(self, number: int, batch: RangeBatch | StagingBatch, guard: BatchGuard) -> None:
        """Build the batch, on its own thread."""
        fault: IscpError | None = None
        size = UNCOUNTED
        try:
            guard.check()
            size = self._builder.build(batch, guard)
        except IscpError as error:
            log.info("build.batch_failed", extra={**_about(batch), "error": str(error)})
            fault = error
        except Exception as error:
            log.exception("build.batch_broken", extra=_about(batch))
            fault = InvariantBroken(f"unforeseen {type(error).__name__}: {error}")
        self._inbox.post(BatchEnded(number, fault, size))


def _about(batch: RangeBatch | StagingBatch) -> dict[str, object]:
    if isinstance(batch, RangeBatch):
        return {"range": batch.range_id}
    return {"table": batch.task.table_uri, "after": batch.task.after, "until": batch.task.until}
