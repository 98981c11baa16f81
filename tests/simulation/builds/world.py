"""A cluster that builds, in one thread and in simulated time: real builders and workers, and models of what is around.

Modelled are etcd (`Store`, for iscp/etcd/watched_keys.py), the calls between owner and nodes, the range
builder, the files under the targets, and the jobs' own iterations, which publish. `Checks` looks at each change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from random import Random

from iscp.cluster.builds.builder import Builder, BuildWorker
from iscp.model.build.build_state import (
    AnswerWork,
    BatchEnded,
    BuilderEffect,
    BuilderEvent,
    BuildLimits,
    BuildOver,
    BuildsLoaded,
    BuildState,
    BuildsUnknown,
    BuildsWritten,
    BuildTick,
    BuildWanted,
    BuildWorkerEffect,
    BuildWorkerEvent,
    CallNode,
    CancelBatch,
    CancelCall,
    Change,
    CheckBuilds,
    LoadBuilds,
    NodesPlaced,
    NotifyBuilt,
    RangeAnswered,
    RangeFailed,
    RefuseWork,
    RunBatch,
    TableSeen,
    TasksChanged,
    TasksRead,
    WaitEnded,
    WorkRequested,
    WriteBuilds,
)
from iscp.model.build.build_task import BuildPlan, RangeBatch, StagingBatch
from iscp.model.values.errors import Canceled, IscpError, PlanOutdated, StorageError
from iscp.model.values.progress import TableSize
from iscp.model.values.ring import Placement, Ring
from tests.simulation.agenda import Agenda
from tests.simulation.builds.checks import Checks, size_of, tiles
from tests.simulation.builds.landing import Landing
from tests.simulation.builds.store import Store

VNODES = 50
CALL_S = 30.0
WAIT_S = 20.0
ITERATION_S = 5.0
SEEN_S = 1.0
TAIL_S = 2.0

Trace = Callable[[float, str, object, list[object]], None]


@cache
def ring_of(nodes: frozenset[str]) -> Ring:
    return Ring(nodes, VNODES)


@dataclass
class Conduct:
    """How the world behaves: delays up to these, in seconds, and how likely what goes wrong is."""

    etcd_s: float = 0.0
    call_s: float = 0.0
    watch_s: float = 0.0
    range_s: float = 1.0
    write_lost: float = 0.0
    write_refused: float = 0.0
    call_lost: float = 0.0
    batch_fails: float = 0.0


@dataclass(frozen=True)
class Parts:
    builder: type[Builder] = Builder
    worker: type[BuildWorker] = BuildWorker
    store: type[Store] = Store


REAL = Parts()
USUAL = BuildLimits()


@dataclass(eq=False)
class Owner:
    """A node that leads, or does not know yet that it does not any more."""

    node_id: str
    builder: Builder
    head: int = 0
    ended: bool = False
    calls: dict[int, tuple[Process, int]] = field(default_factory=dict)
    placed: NodesPlaced | None = None
    storing: int = 0
    seen: dict[str, TableSeen] = field(default_factory=dict)


@dataclass(eq=False)
class Process:
    """One life of a node. `heard`: the highest term whose call came in."""

    node_id: str
    worker: BuildWorker
    read: int = 0
    dead: bool = False
    heard: int = 0
    batches: dict[int, RangeBatch | StagingBatch] = field(default_factory=dict)
    canceled: set[int] = field(default_factory=set)
    answers: dict[int, Callable[[AnswerWork | RefuseWork], None]] = field(default_factory=dict)


class BuildWorld:
    """`files`: the ranges that are staged, by job and version."""

    def __init__(
        self, random: Random, parts: Parts = REAL, trace: Trace | None = None, limits: BuildLimits = USUAL
    ) -> None:
        self.random = random
        self.parts = parts
        self.conduct = Conduct()
        self.agenda = Agenda()
        self.store = parts.store()
        self.checks = Checks()
        self.trace = trace
        self.limits = limits
        self.members: dict[str, Process] = {}
        self.draining: set[str] = set()
        self.owner: Owner | None = None
        self.owners: list[Owner] = []
        self.jobs: dict[str, BuildPlan] = {}
        self.published: set[str] = set()
        self.files: dict[tuple[str, int], set[int]] = {}
        self.landing = Landing()
        self.built_ranges = 0
        self._call = 0

    def draw(self, up_to_s: float) -> float:
        return self.random.random() * up_to_s if up_to_s else 0.0

    def happens(self, likelihood: float) -> bool:
        return bool(likelihood) and self.random.random() < likelihood

    # --- who is there ------------------------------------------------------------------------------------------

    def start(self, *node_ids: str) -> None:
        for node_id in node_ids:
            process = Process(node_id, self.parts.worker(node_id))
            self.members[node_id] = process
            self._read_tasks(process)
        self.place()

    def kill(self, node_id: str) -> None:
        process = self.members.pop(node_id)
        process.dead = True
        if self.owner is not None and self.owner.node_id == node_id:
            self.owner.ended, self.owner = True, None
        self.place()

    def drain(self, *node_ids: str) -> None:
        self.draining = set(node_ids)
        self.place()

    def place(self) -> None:
        """The owner learns who is there."""
        eligible = frozenset(self.members.keys() - self.draining) or frozenset(self.members)
        placed = NodesPlaced(Placement(eligible, ring=ring_of(eligible)), eligible)
        if self.owner is not None and self.owner.placed != placed:
            self.owner.placed = placed
            self.to_owner(self.owner, placed)

    def elect(self, node_id: str, notice_s: float = 0.0) -> None:
        """Whoever led before finds out by `notice_s`."""
        former = self.owner
        if former is not None:
            self.agenda.after(notice_s, lambda: setattr(former, "ended", True))
        self.store.term += 1
        wanted = [plan for job_id, plan in self.jobs.items() if job_id not in self.published]
        unbuilt = {plan.job_id for plan in wanted}
        now_s = self.agenda.now_s
        builder = self.parts.builder(self.store.term, self.limits, wanted, unbuilt, now_s)
        self.owner = Owner(node_id, builder)
        self.owners.append(self.owner)
        self.to_owner(self.owner, BuildTick())
        self.place()
        self.agenda.after(SEEN_S, partial(self._see, self.owner))

    def _see(self, owner: Owner) -> None:
        """What nodes find at their sources, and how far the jobs have come."""
        if owner.ended:
            return
        for table_id in sorted({*owner.builder.followed_tables(), *self.landing.repaired}):
            self.to_owner(owner, self.landing.seen(table_id))
        self.agenda.after(SEEN_S, partial(self._see, owner))

    # --- jobs --------------------------------------------------------------------------------------------------

    def want(self, plan: BuildPlan) -> None:
        self.jobs[plan.job_id] = plan
        self.landing.newest[plan.table_id] = max(self.landing.of(plan.table_id), plan.version)
        self._iterate(plan)

    def drop(self, job_id: str) -> None:
        del self.jobs[job_id]
        self.landing.applied.pop(job_id, None)
        self._report(BuildOver(job_id))

    def _iterate(self, plan: BuildPlan) -> None:
        """A job's iteration: it publishes, or says that it waits for its build."""
        if self.jobs.get(plan.job_id) != plan or plan.job_id in self.published:
            return
        if tiles(self.files.get((plan.job_id, plan.version), ())):
            self.published.add(plan.job_id)
            self.landing.check_published(plan, self.store.state)
            self.landing.applied[plan.job_id] = plan.table_id, plan.version
            self.agenda.after(TAIL_S, partial(self._tail, plan.job_id))
            self._report(BuildOver(plan.job_id))
            return
        self._report(BuildWanted(plan))
        self.agenda.after(ITERATION_S, partial(self._iterate, plan))

    def _tail(self, job_id: str) -> None:
        if job_id in self.landing.applied:
            self.landing.tail(job_id)
            self.agenda.after(TAIL_S, partial(self._tail, job_id))

    def _report(self, event: BuildWanted | BuildOver) -> None:
        if self.owner is not None:
            self.to_owner(self.owner, event)

    # --- the owner ---------------------------------------------------------------------------------------------

    def to_owner(self, owner: Owner, event: BuilderEvent) -> None:
        if owner.ended:
            return
        if isinstance(event, BuildsLoaded | BuildsWritten | BuildsUnknown) and event.number == owner.storing:
            owner.storing = 0
        effects = owner.builder.step(event, self.agenda.now_s)
        self._note(f"{owner.node_id}/owner", event, list(effects))
        for effect in effects:
            self._carry_out(owner, effect)
        self._check_idle(owner, event)
        due_s = owner.builder.next_due_s()
        if due_s is not None:
            self.agenda.after(max(0.0, due_s - self.agenda.now_s), lambda: self._tick(owner))

    def _check_idle(self, owner: Owner, event: BuilderEvent) -> None:
        """`storing`: the number of the load, write or check that is under way."""
        if isinstance(event, TableSeen):
            owner.seen[event.table_id] = event
        state = owner.builder.state
        if state is not None and not owner.storing and owner.placed is not None and owner.placed.staying:
            self.landing.check_idle(state, owner.builder.turns.wanted, owner.seen, owner.placed.staying)

    def _tick(self, owner: Owner) -> None:
        due_s = owner.builder.next_due_s()
        if not owner.ended and due_s is not None and due_s <= self.agenda.now_s:
            self.to_owner(owner, BuildTick())

    def _carry_out(self, owner: Owner, effect: BuilderEffect) -> None:
        after, conduct = self.agenda.after, self.conduct
        match effect:
            case LoadBuilds(number):
                owner.storing = number
                after(self.draw(conduct.etcd_s), partial(self._load, owner, number))
            case WriteBuilds():
                owner.storing = effect.number
                after(self.draw(conduct.etcd_s), partial(self._write, owner, effect, owner.head))
            case CheckBuilds(number):
                owner.storing = number
                after(self.draw(conduct.etcd_s), partial(self._check, owner, number))
            case CallNode():
                after(self.draw(conduct.call_s), partial(self._request, owner, effect))
                after(CALL_S, partial(self.to_owner, owner, RangeFailed(effect.number, "no answer")))
            case CancelCall(number):
                if (called := owner.calls.pop(number, None)) is not None:
                    after(self.draw(conduct.call_s), lambda: self.to_worker(called[0], WaitEnded(called[1])))
            case NotifyBuilt(plan):
                after(self.draw(conduct.call_s), partial(self._iterate_again, plan))

    def _iterate_again(self, plan: BuildPlan) -> None:
        """By the owner's hint; the job's own next one comes as well, and finds it published."""
        current = self.jobs.get(plan.job_id)
        if current == plan and tiles(self.files.get((plan.job_id, plan.version), ())):
            self._iterate(plan)

    def _load(self, owner: Owner, number: int) -> None:
        if self.happens(self.conduct.write_lost):
            self.to_owner(owner, BuildsUnknown(number))
            return
        owner.head = self.store.head
        self.to_owner(owner, BuildsLoaded(number, BuildState.of(self.store.state.changes())))

    def _check(self, owner: Owner, number: int) -> None:
        same = owner.head == self.store.head and not self.happens(self.conduct.write_lost)
        self.to_owner(owner, BuildsWritten(number) if same else BuildsUnknown(number))

    def _write(self, owner: Owner, effect: WriteBuilds, head: int) -> None:
        """One that is not answered may come into effect at once, later or never."""
        number, term = effect.number, owner.builder.owner_rev
        if self.happens(self.conduct.write_refused):
            self.to_owner(owner, BuildsUnknown(number))
            return
        if self.happens(self.conduct.write_lost):
            if self.happens(0.7):
                self.agenda.after(self.draw(3.0), partial(self._commit_late, term, head, effect.changes))
            self.agenda.after(self.draw(self.conduct.etcd_s), partial(self.to_owner, owner, BuildsUnknown(number)))
            return
        written = self._commit(term, head, effect.changes)
        if written:
            owner.head = self.store.head
        answer = BuildsWritten(number) if written else BuildsUnknown(number)
        self.agenda.after(self.draw(self.conduct.etcd_s), partial(self.to_owner, owner, answer))

    def _commit(self, term: int, head: int, changes: tuple[Change, ...]) -> bool:
        before = BuildState.of(self.store.state.changes())
        if not self.store.write(term, head, changes):
            return False
        self.checks.check_write(before, changes, self.store.state, self.files)
        self.landing.check_write(self.store.state)
        self._changed()
        return True

    def _commit_late(self, term: int, head: int, changes: tuple[Change, ...]) -> None:
        self._commit(term, head, changes)

    def empty_etcd(self) -> None:
        """Of builds: nobody knows any more what is kept."""
        self.store.empty()
        self.landing.forget()
        self._changed()

    def _changed(self) -> None:
        for process in list(self.members.values()):
            self.agenda.after(self.draw(self.conduct.watch_s), partial(self._follow, process))

    # --- the nodes ---------------------------------------------------------------------------------------------

    def to_worker(self, process: Process, event: BuildWorkerEvent) -> None:
        if process.dead:
            return
        effects = process.worker.step(event)
        self.checks.check_worker(process.worker, process.heard, event, effects)
        if isinstance(event, WorkRequested):
            process.heard = max(process.heard, event.owner_rev)
        self._note(process.node_id, event, list(effects))
        for effect in effects:
            self._do(process, effect)

    def _do(self, process: Process, effect: BuildWorkerEffect) -> None:
        match effect:
            case RunBatch(number, batch):
                process.batches[number] = batch
                self.agenda.after(self.draw(self.conduct.range_s), partial(self._stage, process, number))
            case CancelBatch(number):
                process.canceled.add(number)
            case AnswerWork(number) | RefuseWork(number):
                process.answers.pop(number)(effect)

    def _stage(self, process: Process, number: int) -> None:
        """The batch comes to its end: of all its jobs, of some, or of none. One that was cancelled may still write."""
        if process.dead and not self.happens(0.2):
            return
        batch = process.batches.pop(number)
        fails = self.happens(self.conduct.batch_fails)
        stopped = number in process.canceled and self.happens(0.5)
        if isinstance(batch, StagingBatch):
            self.to_worker(process, BatchEnded(number, self._keep(batch, fails, stopped), TableSize(1, 100)))
            return
        for plan in batch.plans:
            if not stopped and not (fails and self.happens(0.5)):
                self.files.setdefault((plan.job_id, plan.version), set()).add(batch.range_id)
                self.built_ranges += 1
        fault: IscpError | None = Canceled("the batch was cancelled") if stopped else None
        self.to_worker(
            process,
            BatchEnded(number, StorageError("a file cannot be written") if fails else fault, size_of(batch.range_id)),
        )

    def _keep(self, batch: StagingBatch, fails: bool, stopped: bool) -> IscpError | None:
        """What is to be deleted is deleted whole, and by nobody whose task is gone."""
        if stopped or batch.task.task_id not in self.store.state.staging:
            return Canceled("the batch was cancelled")
        away = batch.task.table_id in self.landing.away and not batch.task.removes
        if away or (fails and (batch.task.removes or self.happens(0.5))):
            return StorageError("a file cannot be written")
        outdated = self.landing.keep(batch.task, batch.plans)
        for plan in outdated:
            if self.jobs.get(plan.job_id) == plan and plan.job_id not in self.published:
                newer = replace(plan, version=self.landing.of(plan.table_id))
                self.agenda.after(self.draw(ITERATION_S), partial(self._renew, plan, newer))
        if outdated:
            return PlanOutdated("a commit is gone")
        return StorageError("a file cannot be written") if fails else None

    def _renew(self, plan: BuildPlan, newer: BuildPlan) -> None:
        if self.jobs.get(plan.job_id) == plan and plan.job_id not in self.published:
            self.want(newer)

    def _read_tasks(self, process: Process) -> None:
        process.read = len(self.store.log)
        self.to_worker(process, TasksRead(list(self.store.state.changes())))

    def _follow(self, process: Process) -> None:
        if process.dead or process.read == len(self.store.log):
            return
        changes = self.store.log[process.read]
        process.read += 1
        self.to_worker(process, TasksChanged(changes))

    def _request(self, owner: Owner, call: CallNode) -> None:
        process = self.members.get(call.place.node_id)
        if owner.ended or process is None or self.happens(self.conduct.call_lost):
            self.agenda.after(self.draw(self.conduct.call_s), partial(self._fail_call, owner, call.number))
            return
        self._call += 1
        number = self._call
        owner.calls[call.number] = process, number

        def answer(effect: AnswerWork | RefuseWork) -> None:
            owner.calls.pop(call.number, None)
            if not self.happens(self.conduct.call_lost):
                event = (
                    RangeAnswered(call.number, effect.finished)
                    if isinstance(effect, AnswerWork)
                    else RangeFailed(call.number, effect.fault.sentence)
                )
                self.agenda.after(self.draw(self.conduct.call_s), partial(self.to_owner, owner, event))

        process.answers[number] = answer
        self.agenda.after(WAIT_S, partial(self._end_wait, owner, process, call.number, number))
        request = WorkRequested(number, call.owner_rev, call.place.range_id, call.task_ids)
        self.to_worker(process, request)
        if self.happens(self.conduct.call_lost):  # the same once more, late
            again = replace(request, number=-number)
            process.answers[-number] = lambda effect: None
            self.agenda.after(self.draw(5.0), partial(self.to_worker, process, again))

    def _fail_call(self, owner: Owner, number: int) -> None:
        self.to_owner(owner, RangeFailed(number, "the node cannot be reached"))

    def _end_wait(self, owner: Owner, process: Process, call: int, number: int) -> None:
        if process.answers.pop(number, None) is not None:
            owner.calls.pop(call, None)
            self.to_worker(process, WaitEnded(number))
            self.to_owner(owner, RangeAnswered(call, {}))

    def _note(self, name: str, event: object, effects: list[object]) -> None:
        if self.trace is not None:
            self.trace(self.agenda.now_s, name, event, effects)
