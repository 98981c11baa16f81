"""Every order of events of one build in a small cluster: breadth first over the real machines, to the end of states.

One job's snapshot is cut in two and built by two nodes, for an owner that may change. What is bounded: so many changes
of the owner, whose former one goes on; nodes that restart, whose batch may still land; writes whose answer is lost,
done or not; calls and batches that fail; splits and merges, drains of the first node, and the job's end. What is under
way, calls, answers, writes and what etcd reports to each node, comes in any order that these allow. Time stands still
but for ticks, which lead a builder to its next due time while nothing else is under way for it.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from math import inf
from typing import Any

from iscp.cluster.builds.builder import Builder, BuildWorker
from iscp.model.build.build_state import (
    AnswerWork,
    BatchEnded,
    BuilderEvent,
    BuildLimits,
    BuildOver,
    BuildsLoaded,
    BuildState,
    BuildsUnknown,
    BuildsWritten,
    BuildTick,
    BuildWorkerEvent,
    CallNode,
    CancelBatch,
    CancelCall,
    Change,
    LoadBuilds,
    MergeRange,
    NodesPlaced,
    RangeAnswered,
    RangeFailed,
    RefuseWork,
    RunBatch,
    SplitRange,
    TasksChanged,
    TasksRead,
    WaitEnded,
    WorkRequested,
    WriteBuilds,
)
from iscp.model.build.build_task import BuildPlan, RangeBatch
from iscp.model.rows.key_ranges import WHOLE
from iscp.model.values.errors import IscpError, StorageError
from iscp.model.values.progress import TableSize
from iscp.model.values.ring import Placement, Ring
from tests.simulation.builds.checks import Checks, size_of, tiles
from tests.simulation.violation import ViolationError, expect

NODES = ("n1", "n2")
PLAN = BuildPlan("j", "default", "t", "j", "/t", 7, "{}", 1 << 30, 1)
_RINGS = {nodes: Ring(nodes, 50) for nodes in (frozenset(NODES), frozenset(NODES[1:]))}


STATES_MAX = 200_000
LIMITS = BuildLimits(check_every_s=inf)
"""Etcd loses nothing here."""


@dataclass(slots=True)
class Owner:
    """`store`: its load or write that is under way; `calls` are those that nobody has answered, by their numbers."""

    builder: Builder
    now_s: float = 0.0
    head: int = 0
    store: LoadBuilds | WriteBuilds | None = None
    calls: dict[int, CallNode] = field(default_factory=dict)


@dataclass(slots=True)
class Life:
    """`unread`: transactions that the node has not heard of. `batches`: the ranges that it stages."""

    worker: BuildWorker
    heard: int = 0
    unread: deque[tuple[Change, ...]] = field(default_factory=deque)
    batches: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class World:
    """`served`: calls that wait at nodes, as term and number, by the node's own number.

    `landing`: ranges whose node has ended, and which may still land.
    """

    owners: dict[int, Owner]
    lives: dict[str, Life]
    etcd: BuildState = field(default_factory=BuildState)
    head: int = 0
    checks: Checks = field(default_factory=Checks)
    files: set[int] = field(default_factory=set)
    landing: list[int] = field(default_factory=list)
    answers: dict[tuple[int, int], Mapping[str, TableSize] | IscpError] = field(default_factory=dict)
    served: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    call: int = 0
    over: bool = False

    @property
    def term(self) -> int:
        return max(self.owners)


Action = Callable[[World], None]


class BuildSearch:
    """`states` counts what was found; raises Violation with the way that leads there."""

    def __init__(
        self, bounds: Mapping[str, int], builder: type[Builder] = Builder, worker: type[BuildWorker] = BuildWorker
    ) -> None:
        """`bounds`: of elections, restarts, losses, failures, splits, merges, drains, ends; 0 where none is given."""
        self._builder, self._worker, self._bounds = builder, worker, bounds
        self.states = self.ends = 0

    def run(self) -> int:
        """All states; raises Violation."""
        first = World({}, {node_id: Life(self._worker(node_id)) for node_id in NODES})
        for node_id in NODES:
            self._tell(first, node_id, TasksRead(()))
        self._elect(first)
        seen = {fingerprint(first)}
        frontier: deque[tuple[World, tuple[str, ...]]] = deque([(first, ())])
        while frontier:
            before, way = frontier.popleft()
            actions = list(self._actions(before))
            if not actions:
                self.ends += 1
                if not before.over or any(before.etcd.changes()):
                    raise ViolationError(f"nothing happens any more, and it is not built, after {', '.join(way)}")
            for name, action in actions:
                world = copied(before)
                try:
                    action(world)
                except ViolationError as violation:
                    raise ViolationError(f"{violation}, after {', '.join((*way, name))}") from violation
                mark = fingerprint(world)
                if mark not in seen:
                    seen.add(mark)
                    frontier.append((world, (*way, name)))
            expect(len(seen) <= STATES_MAX, "more than {} states", STATES_MAX)
        self.states = len(seen)
        return self.states

    # --- what can happen ---------------------------------------------------------------------------------------

    def _actions(self, world: World) -> Iterator[tuple[str, Action]]:
        for term, owner in world.owners.items():
            yield from self._owner_actions(world, term, owner)
        for node_id, life in world.lives.items():
            if life.unread:
                yield f"{node_id} follows", partial(self._follow, node_id=node_id)
            for number in life.batches:
                yield f"{node_id} stages {life.batches[number]}", partial(self._stage, node_id=node_id, number=number)
                if self._left(world, "failures"):
                    yield f"{node_id} fails", partial(self._stage, node_id=node_id, number=number, fails=True)
            if life.batches and self._left(world, "restarts"):
                yield f"{node_id} restarts", partial(self._restart, node_id=node_id)
        for place in range(len(world.landing)):
            yield f"{world.landing[place]} lands late", partial(self._land, place=place)
        if tiles(world.files) and not world.over:
            yield "publish", self._end
        yield from self._wishes(world)

    def _owner_actions(self, world: World, term: int, owner: Owner) -> Iterator[tuple[str, Action]]:
        if owner.store is not None:
            yield f"{term} {type(owner.store).__name__}", partial(self._serve, term=term)
            if isinstance(owner.store, WriteBuilds) and self._left(world, "losses"):
                yield f"{term} loses an answer", partial(self._serve, term=term, answered=False)
                yield f"{term} loses a write", partial(self._serve, term=term, done=False, answered=False)
        for number in owner.calls:
            if (term, number) in world.answers:
                yield f"{term} hears {number}", partial(self._hear, term=term, number=number)
            elif (term, number) not in world.served.values():
                yield f"{term} calls {number}", partial(self._call, term=term, number=number)
        if owner.store is None and owner.builder.next_due_s() is not None and not self._busy(world, term):
            yield f"{term} ticks", partial(self._tick, term=term)

    def _busy(self, world: World, term: int) -> bool:
        """Time passes for an owner once what it waits for has come, and only for one that leads."""
        unread = any(life.unread or life.batches for life in world.lives.values())
        return term != world.term or unread or bool(world.answers) or bool(world.owners[term].calls)

    def _wishes(self, world: World) -> Iterator[tuple[str, Action]]:
        if self._left(world, "elections"):
            yield "elect", partial(self._counted, what="elections", action=self._elect)
        state, term = world.owners[world.term].builder.state, world.term
        if state is None or world.over:
            return
        if self._left(world, "drains"):
            yield "drain", partial(self._counted, what="drains", action=self._drain)
        if self._left(world, "ends"):
            yield "end", partial(self._counted, what="ends", action=self._end)
        if self._left(world, "splits") and any(state.of_range(PLAN.table_id, 2)):
            split = partial(self._step, term=term, event=SplitRange(PLAN.table_id, 2))
            yield "split", partial(self._counted, what="splits", action=split)
        if self._left(world, "merges") and all(any(state.of_range(PLAN.table_id, each)) for each in (2, 3)):
            merge = partial(self._step, term=term, event=MergeRange(PLAN.table_id, WHOLE))
            yield "merge", partial(self._counted, what="merges", action=merge)

    def _left(self, world: World, what: str) -> bool:
        return world.counts.get(what, 0) < self._bounds.get(what, 0)

    # --- carried out -------------------------------------------------------------------------------------------

    def _count(self, world: World, what: str) -> None:
        world.counts[what] = world.counts.get(what, 0) + 1

    def _counted(self, world: World, what: str, action: Action) -> None:
        self._count(world, what)
        with suppress(IscpError):  # it is refused, and nothing is changed
            action(world)

    def _elect(self, world: World) -> None:
        term = 1 + max(world.owners, default=0)
        wanted = [] if world.over else [PLAN]
        world.owners[term] = Owner(self._builder(term, LIMITS, wanted, [each.job_id for each in wanted], 0.0))
        self._step(world, term, BuildTick())
        self._place(world, term, frozenset(NODES[1:] if world.counts.get("drains") else NODES))

    def _drain(self, world: World) -> None:
        self._place(world, world.term, frozenset(NODES[1:]))

    def _place(self, world: World, term: int, nodes: frozenset[str]) -> None:
        self._step(world, term, NodesPlaced(Placement(nodes, ring=_RINGS[nodes]), nodes))

    def _end(self, world: World) -> None:
        world.over = True
        self._step(world, world.term, BuildOver(PLAN.job_id))

    def _serve(self, world: World, term: int, done: bool = True, answered: bool = True) -> None:
        owner = world.owners[term]
        asked, owner.store = owner.store, None
        if isinstance(asked, LoadBuilds):
            owner.head = world.head
            self._step(world, term, BuildsLoaded(asked.number, BuildState.of(world.etcd.changes())))
            return
        assert asked is not None
        fits = term == world.term and owner.head == world.head
        if done and fits:
            before = BuildState.of(world.etcd.changes())
            for change in asked.changes:
                world.etcd.apply(change)
            world.head += 1
            files = {(PLAN.job_id, PLAN.version): world.files}
            world.checks.check_write(before, asked.changes, world.etcd, files)
            for life in world.lives.values():
                life.unread.append(asked.changes)
        if not answered:
            self._count(world, "losses")
        written = done and answered and fits
        owner.head = world.head if written else owner.head
        self._step(world, term, BuildsWritten(asked.number) if written else BuildsUnknown(asked.number))

    def _tick(self, world: World, term: int) -> None:
        owner = world.owners[term]
        owner.now_s = max(owner.now_s, owner.builder.next_due_s() or 0.0)
        self._step(world, term, BuildTick())

    def _step(self, world: World, term: int, event: BuilderEvent) -> None:
        owner = world.owners[term]
        for effect in owner.builder.step(event, owner.now_s):
            match effect:
                case LoadBuilds() | WriteBuilds():
                    owner.store = effect
                case CallNode(number):
                    owner.calls[number] = effect
                case CancelCall(number):
                    self._cancel(world, term, number)
                case _:
                    pass

    def _cancel(self, world: World, term: int, number: int) -> None:
        world.owners[term].calls.pop(number, None)
        world.answers.pop((term, number), None)
        for (node_id, call), of in list(world.served.items()):
            if of == (term, number):
                del world.served[node_id, call]
                self._tell(world, node_id, WaitEnded(call))

    def _call(self, world: World, term: int, number: int) -> None:
        call = world.owners[term].calls[number]
        world.call += 1
        world.served[call.place.node_id, world.call] = term, number
        request = WorkRequested(world.call, call.owner_rev, call.place.range_id, call.task_ids)
        self._tell(world, call.place.node_id, request)

    def _hear(self, world: World, term: int, number: int) -> None:
        answer = world.answers.pop((term, number))
        del world.owners[term].calls[number]
        event = RangeFailed(number, "it failed") if isinstance(answer, IscpError) else RangeAnswered(number, answer)
        self._step(world, term, event)

    def _follow(self, world: World, node_id: str) -> None:
        self._tell(world, node_id, TasksChanged(world.lives[node_id].unread.popleft()))

    def _tell(self, world: World, node_id: str, event: BuildWorkerEvent) -> None:
        life = world.lives[node_id]
        effects = life.worker.step(event)
        world.checks.check_worker(life.worker, life.heard, event, effects)
        if isinstance(event, WorkRequested):
            life.heard = max(life.heard, event.owner_rev)
        for effect in effects:
            match effect:
                case RunBatch(number, RangeBatch() as batch):
                    life.batches[number] = batch.range_id
                case CancelBatch():
                    pass  # it may end as if it was not
                case AnswerWork(number, finished):
                    world.answers[world.served.pop((node_id, number))] = finished
                case RefuseWork(number, fault):
                    world.answers[world.served.pop((node_id, number))] = fault

    def _stage(self, world: World, node_id: str, number: int, fails: bool = False) -> None:
        range_id = world.lives[node_id].batches.pop(number)
        if fails:
            self._count(world, "failures")
        else:
            world.files.add(range_id)
        self._tell(world, node_id, BatchEnded(number, StorageError("it failed") if fails else None, size_of(range_id)))

    def _restart(self, world: World, node_id: str) -> None:
        """Who waited for it is refused, and what it staged may land later."""
        self._count(world, "restarts")
        world.landing += world.lives[node_id].batches.values()
        for node, call in [each for each in world.served if each[0] == node_id]:
            world.answers[world.served.pop((node, call))] = StorageError("the node is gone")
        world.lives[node_id] = Life(self._worker(node_id))
        self._tell(world, node_id, TasksRead(list(world.etcd.changes())))

    def _land(self, world: World, place: int) -> None:
        world.files.add(world.landing.pop(place))


def copied(world: World) -> World:
    """Rings never change."""
    return copy.deepcopy(world, {id(ring): ring for ring in _RINGS.values()})


def fingerprint(world: World) -> int:
    """Equal for states that what follows cannot distinguish; times count from each owner's own now."""
    owners = tuple(
        (term, plain((owner.builder, owner.store, owner.calls), owner.now_s)) for term, owner in world.owners.items()
    )
    rest = (world.lives, list(world.etcd.changes()), world.files, world.landing, world.served, world.counts, world.over)
    return hash(
        (owners, plain(rest, 0.0), repr(world.answers), world.head - max(o.head for o in world.owners.values()))
    )


def plain(what: Any, now_s: float) -> Any:
    """As nested tuples of values that can be hashed."""
    match what:
        case bool() | int() | str() | None | Enum():
            return what
        case float():
            return round(what - now_s, 6)
        case dict():
            return tuple((plain(key, now_s), plain(value, now_s)) for key, value in what.items())
        case set() | frozenset():
            return tuple(sorted(map(repr, what)))
        case list() | tuple() | deque():
            return tuple(plain(each, now_s) for each in what)
        case Ring():
            return id(what)
        case IscpError():
            return repr(what)
    if hasattr(what, "__length_hint__"):  # ranges that are still to be created
        return repr(what.__reduce__())
    names = getattr(what, "__slots__", None) or vars(what)
    return type(what).__name__, tuple((name, plain(getattr(what, name), now_s)) for name in names)
