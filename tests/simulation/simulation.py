"""One run: faults for a while, then calm, in which the cluster has to converge and then be idle.

Safety is checked whenever something happens; see Checks, Sink, Log and `iscp/cluster/invariants.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random

from iscp.model.build.build_state import SetPriority
from iscp.model.job.job_row import JobRow
from iscp.model.protocol.events import RebalanceRequested
from iscp.model.values.errors import InvariantBroken
from iscp.model.values.ids import JobKey
from iscp.schedule.lag import of_the_future
from tests.simulation.builds.building import state_of
from tests.simulation.election import leader_of
from tests.simulation.parts import REAL, Parts
from tests.simulation.process import Process
from tests.simulation.trouble import Trouble, draw
from tests.simulation.violation import ViolationError, expect
from tests.simulation.world import Note, World
from tests.simulation.wrongs import draw_losses, draw_notices, draw_talk, draw_wrongs

CALM_MAX_S = 120.0
"""How long it may take until all is right: leases run out, holds and deadlines follow one another."""

FOREIGN = ("iteration.failed",)
"""What is logged as an error where the code of others fails."""

LOOK_S = 1.0
SETTLED_S = 7.0
"""How long all has to be right: what was sent before may still be under way."""

ASK_S = 0.5
TOGETHER_S = 0.25
REBALANCE_AFTER_S = 20.0
REST_S = 8.0


def trouble_of(seed: int) -> Trouble:
    return _drawn(seed, *_randoms(seed))


def _randoms(seed: int) -> tuple[Random, Random, Random]:
    return Random(seed), Random(f"{seed} aside"), Random(f"{seed} wrongs")


def _drawn(seed: int, random: Random, aside: Random, wrongs: Random) -> Trouble:
    further = (Random(f"{seed} {name}") for name in ("latest", "newest", "builds", "probes"))
    trouble = draw_wrongs(wrongs, draw(random, aside, *further))
    trouble = draw_losses(Random(f"{seed} losses"), draw_talk(Random(f"{seed} talk"), trouble))
    return draw_notices(Random(f"{seed} notices"), trouble)


def simulate(
    seed: int,
    parts: Parts = REAL,
    trace: Note | None = None,
    trouble: Trouble | None = None,
    watched: Callable[[World], None] | None = None,
) -> World:
    """Raises Violation. `trouble`: this kind, instead of one drawn; `watched` looks now and then."""
    random, aside, wrongs = _randoms(seed)
    trouble = trouble or _drawn(seed, random, aside, wrongs)
    world = World(random, trouble, parts, trace, aside, wrongs)
    if watched is not None:
        _watch(world, watched)
    with errors_only(FOREIGN if world.trouble.poison else ()):
        try:
            _run(world)
            _calm(world)
            if world.trouble_drawn.together:
                world.checks.each_started_once()
        except InvariantBroken as error:
            raise ViolationError(f"an invariant broke: {error}") from error
        finally:
            world.unwind()
    return world


@contextmanager
def errors_only(but: Collection[str] = ()) -> Iterator[None]:
    """What the product logs as an error is one: no loop may break, and no callback fail."""
    logger, found = logging.getLogger("iscp"), Errors(but)
    level, propagate = logger.level, logger.propagate
    logger.addHandler(found)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(found)
        logger.setLevel(level)
        logger.propagate = propagate


class Errors(logging.Handler):
    def __init__(self, but: Collection[str]) -> None:
        super().__init__(logging.ERROR)
        self._but = but

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() in self._but:
            return
        error = record.exc_info[1] if record.exc_info else None
        raise ViolationError(f"{record.getMessage()}: {type(error).__name__}: {error}")


def _watch(world: World, watched: Callable[[World], None]) -> None:
    watched(world)
    world.agenda.after(LOOK_S / 10, lambda: _watch(world, watched))


def _ask(world: World) -> None:
    """Users read at every node, as long as all goes on."""
    for process in world.processes.values():
        if process.alive and not process.paused:
            process.owner.ask_for_jobs()
            process.owner.look_at_lags()
    world.agenda.after(ASK_S, partial(_ask, world))


def _run(world: World) -> None:
    random, trouble = world.random, world.trouble
    _ask(world)
    world.wrongs.arrange()
    for node_id in world.node_ids:
        world.agenda.after(random.random() * (TOGETHER_S if trouble.together else 1.0), partial(world.start, node_id))
    if trouble.loaded:
        world.log.load(JobKey("default", table, "j") for table in world.tables)
    for table in world.tables:
        _arrange(world, trouble.version_rate, partial(world.new_version, table))
        if not trouble.loaded:
            world.agenda.after(1.0 + random.random() * 10.0, partial(_register, world, table))
    for fault, rate in trouble.faults.items():
        _arrange(world, rate, partial(world.befall, fault))
    if trouble.vacuum:
        _arrange(world, trouble.vacuum, world.vacuum)
    for wish, rate in trouble.wishes.items():
        _arrange(world, rate, partial(world.wish, wish))
    world.agenda.run_until(trouble.length_s)


def _arrange(world: World, rate: float, action: Callable[[], None]) -> None:
    """`action` again and again, at random, until the calm."""

    def act() -> None:
        if not world.calm:
            action()
            _arrange(world, rate, action)

    world.agenda.after(world.random.expovariate(rate), act)


def _register(world: World, table: str) -> None:
    """Every table has a job at the beginning, as soon as there is somebody to take it."""
    owner = world.an_owner()
    if owner is not None:
        world.operators.register(owner, JobKey("default", table, "j"))
    elif not world.calm:
        world.agenda.after(1.0, partial(_register, world, table))


def _calm(world: World) -> None:
    trouble = world.trouble
    world.note("calm", "begins")
    world.end_all_trouble(Trouble(nodes=trouble.nodes, shards=trouble.shards, builds=trouble.builds))
    if trouble.apart:
        _keep_apart(world)
    longest_s = CALM_MAX_S * (2 if trouble.builds else 1)  # tables are built one after the other
    end_s = world.agenda.now_s + longest_s
    rebalance_s = world.agenda.now_s + REBALANCE_AFTER_S
    right_s = world.agenda.now_s
    while world.agenda.now_s - right_s < SETTLED_S:
        if wrong := _wrong(world, apart=trouble.apart):
            right_s = world.agenda.now_s
            expect(right_s < end_s, "{} s after all trouble: {}", longest_s, wrong)
        world.agenda.run_until(world.agenda.now_s + LOOK_S)
        if (owner := _owner(world)) is not None:
            world.operators.resume_all(owner)
        if world.agenda.now_s >= rebalance_s and (owner := _owner(world)) is not None:
            rebalance_s += REBALANCE_AFTER_S
            owner.owner.ask(RebalanceRequested())
    if not trouble.apart:
        _rest(world)


def _keep_apart(world: World) -> None:
    """All nodes restart and reach etcd, and none ever reaches another: whoever is elected has to run everything."""
    for process in list(world.processes.values()):
        world.end(process)
    for source in world.node_ids:
        for target in world.node_ids:
            world.wire.cuts[source, target] = 1


def _rest(world: World) -> None:
    """Nothing moves any more, and nobody says anything."""
    world.note("calm", "all is right")
    placed, sent, commits = world.placed(), world.wire.sent, world.number()
    world.agenda.run_until(world.agenda.now_s + REST_S)
    expect(world.placed() == placed, "shards move though nothing happens: from {} to {}", placed, world.placed())
    expect(world.wire.sent == sent, "{} messages though nothing happens", world.wire.sent - sent)
    expect(world.number() == commits + 1, "the log is written though nothing happens")


def _owner(world: World) -> Process | None:
    """Who leads, and has a term. It need not be the log's last: who claimed too late does nothing with its claim."""
    leader = leader_of(world.etcd)
    process = world.processes.get(leader.node_id) if leader else None
    return process if process is not None and process.owner.leads else None


def _unfinished(world: World) -> str:
    """What trouble has left to be done, of which nobody can know how long it takes: it is no rest before that."""
    if left := [change for change in state_of(world.etcd).changes() if not isinstance(change, SetPriority)]:
        return f"etcd has something left of builds: {left}"
    for process in world.processes.values():
        machine = process.worker.machine
        if machine is None:
            return f"{process.node_id} has not registered: etcd has its last registration still"
        if machine.outbox.gathered or machine.outbox.chunks:
            return f"not all that {process.node_id} has reported is recorded"
        if process.engine.has_orders:
            return f"the engine of {process.node_id} has not taken in what it was ordered"
    return ""


def _unread(world: World, row: JobRow, further: Sequence[str]) -> str:
    """What a job that reads several tables has not read, or the log does not have of what it has read."""
    sink, recorded = world.sink(row.key), row.sources
    for table in (row.key.table_id, *further):
        newest, mark = world.sources[table], sink.sources.get(f"/{table}")
        if sink.job_id != row.job_id or mark is None or not world.covers(table, mark.watermark.version, newest):
            return f"the sink of {row.key.table_id}.{row.key.job_name} has {mark}, of {newest} of {table}"
        known = recorded.get(f"/{table}")
        if known is None or known.watermark.version != newest:
            return f"the log has {row.key.table_id}.{row.key.job_name} at {known} of {newest} of {table}"
    return "" if row.seq == sink.seq else f"the log has {row.key} at seq {row.seq} of {sink.seq}"


def _wrong(world: World, apart: bool) -> str:
    """What is not yet as it has to be in the end; empty: nothing. `apart`: nobody hears from another."""
    owner = _owner(world)
    if owner is None:
        return "nobody is the owner"
    machine = owner.owner.machine
    wanted = {row.key: row for row in world.log.rows.values() if row.drop_at_s is None}
    placed = world.placed()
    for key, row in wanted.items():
        sink, newest = world.sink_of(row), world.sources[key.table_id]
        if several := world.further(key):
            if wrong := _unread(world, row, several):
                return wrong
            continue
        if sink.job_id != row.job_id or sink.content < newest:
            return f"the sink of {key.table_id}.{key.job_name} is at {sink.content} of {newest}, of {sink.job_id}"
        if (row.watermark.version, row.seq) != (sink.content, sink.seq):
            return (
                f"the log has {key.table_id}.{key.job_name} at {row.watermark.version}, its sink is at {sink.content}"
            )
    for shard in {assignment.shard for assignment in machine.assignments} | placed.keys():
        where = placed.get(shard, [])
        if len(where) != any(key.shard == shard for key in wanted):
            return f"{shard} is at {where}"
        if not apart and machine.term is not None and where not in ([], [machine.term.placement.target(shard)]):
            return f"{shard} is at {where}, and should be at {machine.term.placement.target(shard)}"
    if not apart and (waiting := _unfinished(world) or _ahead(owner)):
        return waiting
    missing = {key.shard for key in wanted} - placed.keys()
    if missing:
        return f"{missing} run nowhere"
    return "" if apart or machine.settled else "the owner is not settled"


def _ahead(owner: Process) -> str:
    at_s = owner.owner.loop.checkpoint.at_s
    return f"the global checkpoint is at {at_s}, which is still to come" if of_the_future(at_s, owner.wall_s) else ""
