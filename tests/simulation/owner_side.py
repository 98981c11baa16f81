"""The owner's part of a node: the real OwnerLoop and LogWriter, on threads, a log and an etcd of the world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from iscp.cluster.invariants import check_owner
from iscp.cluster.jobs.job_book import JobBook
from iscp.cluster.jobs.job_changes import Pause, Register, Request, Resume, Resync, Unregister, Update
from iscp.cluster.membership.membership import Roll
from iscp.cluster.owner.checkpoint_saver import Checkpointer
from iscp.cluster.owner.job_log_writer import LogWriter
from iscp.cluster.owner.owner_events import JobLogAccess, OwnerHooks
from iscp.cluster.owner.owner_loop import OwnerLoop, Revoker
from iscp.cluster.owner_machine import OwnerMachine
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import (
    Decided,
    Decision,
    FromNode,
    MoveRequested,
    OverridesChanged,
    OwnerEffect,
    OwnerEvent,
    RebalanceRequested,
    RecordCheckpoint,
    Recorded,
    RowsMoved,
    Tick,
)
from iscp.model.protocol.messages import DispatchTable, DispatchTableResponse, NodeMessage, OwnerMessage
from iscp.model.values.errors import InvariantBroken, IscpError, OutcomeUnknown, QueueFull
from iscp.model.values.ids import JobKey, Leader, Moment, NodeRecord
from iscp.model.values.ring import Overrides
from iscp.ports.cluster import ClusterPorts
from iscp.system.inbox import EVENTS_MAX
from tests.simulation.joblog import CONFIG, LIMITS, TermLog
from tests.simulation.owner_ports import (
    OwnerCheckpoints,
    OwnerElection,
    OwnerMarks,
    OwnerOverrides,
    ProcessClock,
    overrides_of,
)
from tests.simulation.violation import ViolationError, expect

if TYPE_CHECKING:
    from tests.simulation.process import Process

T = TypeVar("T")

CHECKED_SHARDS = 50
"""A world of so many is checked after every step."""


class OwnerSide:
    """Stands between the loop and the world: passes on what comes and goes, and looks at it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        parts = process.world.parts
        machine = watched(parts.owner)(  # type: ignore[arg-type]  # mypy takes instances' __hash__ for the class's
            process.node_id, "1", parts.owner_times or process.world.times
        )
        machine.watch(self)
        self._unchecked = self._asked = 0
        self._unread_answers = 0
        self._recorded: set[tuple[int, Recorded]] = set()
        self._elected_by = OwnerElection(process)
        self._overrides = OwnerOverrides(process)
        checkpoints = OwnerCheckpoints(process)
        self.loop = built_of(parts.loop, parts.writer, parts.roll, parts.revoker)(  # type: ignore[arg-type]  # as above
            machine,
            JobLogAccess(lambda: TermLog(process), CONFIG, LIMITS),
            ClusterPorts(
                parts.membership(process), self._elected_by, self._overrides, checkpoints, OwnerMarks(process)
            ),
            ProcessClock(process),
            OwnerHooks(self._send, lambda members: None, self._look_at_checkpoint, _broken, self._tell_builder),
            process.threads,
            process.world.trouble.inbox_max or EVENTS_MAX,
        )
        self.loop.checkpoint = Checkpointer(checkpoints, ProcessClock(process), parts.checkpoint, parts.time())
        self.loop.start()

    @property
    def machine(self) -> OwnerMachine:
        return self.loop.machine

    @property
    def leads(self) -> bool:
        """Whether it believes to be the owner, and has a term."""
        return self.loop.writer is not None

    @property
    def last_job_id(self) -> str:
        return self._read(lambda book: book.last_job_id)

    @property
    def rows(self) -> list[JobRow]:
        return self._read(lambda book: list(book.rows()))

    def ranges(self, table_id: str) -> tuple[int, ...]:
        return self._read(lambda book: book.ranges(table_id))

    def job(self, key: JobKey) -> JobRow | None:
        return self._read(lambda book: book.get(key))

    def _read(self, look: Callable[[JobBook], T]) -> T:
        writer = self.loop.writer
        assert writer is not None
        return writer.read(look)

    def ask_for_jobs(self) -> None:
        """A user reads: what is answered is the newest that there is."""
        try:
            self.loop.current_writer()
        except IscpError:
            return
        self._world.checks.read(self._process.node_id, self.machine.owner_rev)

    # --- what comes in -----------------------------------------------------------------------------------------

    def on_elected(self, leader: Leader) -> None:
        self.loop.on_elected(leader)

    def on_lost(self) -> None:
        self.loop.on_lost()

    def on_members_changed(self, members: tuple[NodeRecord, ...], moment: Moment) -> None:
        self.loop.on_members_changed(members, moment)

    def heard(self, node_id: str, messages: Sequence[NodeMessage]) -> None:
        self._process.threads.begin(lambda: self._hear(node_id, messages))

    def _hear(self, node_id: str, messages: Sequence[NodeMessage]) -> None:
        answers = sum(isinstance(message, DispatchTableResponse) for message in messages)
        self._unread_answers += answers
        self._world.checks.answers_wait(self._unread_answers)
        try:
            self.loop.receive(node_id, messages)
        except QueueFull:
            self._unread_answers -= answers

    def submit(self, request: Request) -> None:
        """A user's request; refused while this node is not the owner."""
        self._asked += 1
        request_id = f"{self._process.node_id}-{self._process.started_s}-{self._asked}"
        try:
            answer = self.loop.current_writer().submit(named(request, request_id))
        except IscpError:
            return
        answer.add_done_callback(partial(self._take_answer, request_id))

    def _take_answer(self, request_id: str, answer: Future[Any]) -> None:
        """What is wrong with a request, or with storage, is said by an error of ours; what was done is not refused."""
        error = answer.exception()
        expect(error is None or isinstance(error, IscpError), "a request was answered by {}", error)
        if error is not None and not isinstance(error, OutcomeUnknown):
            self._world.log.refuse(request_id)

    def override(self, change: Callable[[Overrides], Overrides]) -> None:
        """Operators' word goes to etcd first, by the owner's hand and none other's."""
        leader = self.loop.leader
        if leader is not None and self.leads:
            self._process.threads.begin(lambda: self._override(leader, change))

    def _override(self, leader: Leader, change: Callable[[Overrides], Overrides]) -> None:
        try:
            before = self._overrides.ask(overrides_of)
            self._overrides.save(leader, before, changed := change(before))
            if self.loop.leader == leader:
                self.loop.notify(OverridesChanged(changed))
        except IscpError:
            return  # where the answer is lost the operator may say it again

    def ask(self, event: MoveRequested | RebalanceRequested) -> None:
        self._process.threads.begin(lambda: self._tell(event))

    def _tell(self, event: MoveRequested | RebalanceRequested) -> None:
        try:
            self.loop.notify(event)
        except QueueFull:
            return

    # --- what goes out, and what is seen of it -----------------------------------------------------------------

    def _send(self, record: NodeRecord, message: OwnerMessage) -> None:
        if isinstance(message, DispatchTable):
            self._world.checks.dispatched(message, self._process.now_s)
        self._process.streams.tell_node(record, message)

    def _tell_builder(self, table_ids: Iterable[str]) -> None:
        if self._world.trouble_drawn.builds:
            self._process.building.builder.on_tables(table_ids)

    def stepped(self, event: OwnerEvent, effects: Sequence[OwnerEffect]) -> None:
        if isinstance(event, FromNode) and isinstance(event.message, DispatchTableResponse):
            self._unread_answers -= 1
        if effects or not isinstance(event, Tick | RowsMoved | Recorded):
            self._check()
        if effects or not isinstance(event, Tick):
            self._world.stepped(f"{self._process.node_id}/owner", event, effects)
        for effect in effects:
            if isinstance(effect, RecordCheckpoint):
                self._look_at_record(effect)
            elif isinstance(effect, Decided) and effect.what is Decision.REVOKE:
                self._world.checks.revoked(effect.node_id, effect.why)
        if (step_s := self._world.trouble.step_s) > 0.0:
            self._process.threads.sleep(step_s * (0.5 + self._world.random.random()))

    def _check(self) -> None:
        """After every step; in a large world, where it costs with the shards, after so many."""
        self._unchecked += 1
        if self._unchecked * CHECKED_SHARDS**2 >= len(self.machine.assignments) ** 2:
            self._unchecked = 0
            try:
                check_owner(self.machine)
            except InvariantBroken as error:
                raise ViolationError(f"an invariant broke: {error}") from error

    def _look_at_record(self, effect: RecordCheckpoint) -> None:
        recorded = self.machine.owner_rev, Recorded(effect.node_id, effect.epoch, effect.number)
        expect(recorded not in self._recorded, "{} is recorded twice in one term", recorded[1])
        self._recorded.add(recorded)

    def _look_at_checkpoint(self) -> None:
        if self.leads and self.machine.owner_rev == self._world.log.term:
            rows = (row for each in self.machine.assignments if each.wanted for row in each.jobs)
            self._world.checks.checkpoint(self.loop.checkpoint, rows)
            self._world.checks.ahead(self._process.node_id, self.machine.owner_rev, self.loop.checkpoint.at_s)

    def look_at_lags(self) -> None:
        """What users are shown of jobs."""
        if self.leads and self.machine.owner_rev == self._world.log.term:
            rows = [row for each in self.machine.assignments if each.wanted for row in each.jobs]
            self._world.checks.lags(self.loop.sources, rows, self._process.wall_s)


class Watching(OwnerMachine):
    """Before a real machine, or a mutant of it: has each of its steps looked at, and take its time."""

    _watched_by: OwnerSide

    def watch(self, by: OwnerSide) -> None:
        self._watched_by = by

    def step(self, event: OwnerEvent, now_s: float, read_s: float | None = None) -> list[OwnerEffect]:
        effects = super().step(event, now_s, read_s)
        self._watched_by.stepped(event, effects)
        return effects


@cache
def watched(machine: type[OwnerMachine]) -> type[Watching]:
    return type("Watched", (Watching, machine), {})


@cache
def built_of(
    loop: type[OwnerLoop], writer: type[LogWriter], roll: type[Roll], revoker: type[Revoker]
) -> type[OwnerLoop]:
    return type("Loop", (loop,), {"_writer_of": writer, "_roll_of": roll, "_revoker_of": revoker})


def named(request: Request, request_id: str) -> Request:
    """As a client sends it that may repeat it."""
    match request:
        case Register((item,)):
            return Register((replace(item, request_id=request_id),))
        case Resync(seen, item):
            return Resync(seen, replace(item, request_id=request_id))
        case Unregister() | Pause() | Resume() | Update():
            return replace(request, request_id=request_id)
    return request


def _broken(error: Exception) -> None:
    raise ViolationError(f"a loop broke: {type(error).__name__}: {error}") from error
