"""A cluster in one thread: real machines, and everything around them simulated and drawn from one seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from random import Random

from greenlet import getcurrent, greenlet

from iscp.model.job.iteration import Iteration
from iscp.model.job.job_row import JobRow
from iscp.model.values.ids import JobKey, ShardId
from tests.simulation.agenda import Agenda
from tests.simulation.builds.checks import Checks as BuildChecks
from tests.simulation.builds.kept import KeptVersions
from tests.simulation.builds.staged import Staging
from tests.simulation.checks import Checks
from tests.simulation.engine import Run
from tests.simulation.etcd import Etcd, Link
from tests.simulation.operators import Operators
from tests.simulation.parts import REAL, Parts
from tests.simulation.process import Process
from tests.simulation.ranged import RangedRun, RangedSink, RangeOfSink
from tests.simulation.sources import Sink
from tests.simulation.trouble import BUILD_WISHES, Fault, Trouble, Wish
from tests.simulation.wire import Wire
from tests.simulation.wrongs import Wrongs

RESTART_S = 1.0
"""After how long a process that left in order is started again at the latest, beside what the seed adds."""

STANDS_STILL = 1.95
"""For how many margins a clock may stand still: one lies within each lease, one follows its end."""

ALIVE = {"alive_s": 1.5, "sync_deadline_s": 6.0}
"""Where nodes say that they are there: longer than one may be silent that repeats its Sync."""

REPAIR_EVERY = 2
"""Of a source's commits, where builds are simulated."""

NOTHING = Random(0)

Note = Callable[[float, str, object], None]


class World:
    """`aside` draws what came to be simulated later, so that a kind of trouble without it runs as it always did.

    `processes`: the present life of each node that runs. `trace` gets whatever is worth telling."""

    def __init__(
        self,
        random: Random,
        trouble: Trouble,
        parts: Parts = REAL,
        trace: Note | None = None,
        aside: Random = NOTHING,
        wrongs: Random = NOTHING,
    ) -> None:
        self.random, self.trouble, self.parts, self.trace = random, trouble, parts, trace
        self.trouble_drawn, self.aside = trouble, aside
        self.times = replace(parts.times, **ALIVE) if trouble.alive else parts.times
        self.agenda = Agenda()
        self.hub = getcurrent()
        self.begun: list[greenlet] = []
        self.over = False
        self.etcd = Etcd(self)
        self.wire = Wire(self)
        self.log = parts.log(self)
        self.checks = Checks(self)
        self.operators = Operators(self)
        self.build_checks = BuildChecks()
        self.node_ids = [f"n{number}" for number in range(1, trouble.nodes + 1)]
        self.tables = [f"t{number}" for number in range(1, trouble.shards + 1)]
        self.sources = dict.fromkeys(self.tables, 0)
        self.wrongs = Wrongs(self, wrongs)
        self._committed_s: dict[str, list[float]] = {table: [0.0] for table in self.tables}
        self.staging = Staging(self)
        self.kept = KeptVersions(self)
        self.links = dict.fromkeys(self.node_ids, Link.OPEN)
        self.processes: dict[str, Process] = {}
        self.ttls_s = {
            node_id: parts.times.lease_ttl_s * (1.0 + self.aside.random() * trouble.ttl_spread)
            for node_id in self.node_ids
        }
        self.rowless: dict[str, set[int]] = {table: set() for table in self.tables}
        self._awake_until_s: dict[str, float] = {}
        self.calm = False
        self._sinks: dict[JobKey, Sink] = {}
        self._ranged: dict[JobKey, RangedSink] = {}
        self.sharded = Wish.SPLIT in trouble.wishes
        self._rates = {node_id: 1.0 + random.uniform(-1.0, 1.0) * trouble.drift for node_id in self.node_ids}
        self._wall_offsets = dict.fromkeys(self.node_ids, 0.0)
        self._number = 0
        if Fault.RESTORE_ETCD in trouble.faults:
            self.etcd.back_up()

    def unwind(self) -> None:
        """Threads that wait still are unwound: one that nobody goes on with is never let go of by Python."""
        self.over = True
        for each in self.begun:
            if each:
                with suppress(Exception):
                    each.throw()
        self.begun.clear()

    # --- what the parts read -----------------------------------------------------------------------------------

    def happens(self, chance: float) -> bool:
        return chance > 0.0 and self.aside.random() < chance

    def number(self) -> int:
        self._number += 1
        return self._number

    def note(self, who: str, what: object) -> None:
        if self.trace is not None:
            self.trace(self.agenda.now_s, who, what)

    def stepped(self, who: str, event: object, effects: Sequence[object]) -> None:
        if self.trace is not None:
            self.trace(self.agenda.now_s, who, event)
            for effect in effects:
                self.trace(self.agenda.now_s, f"{'':6} ->", effect)

    def sink(self, key: JobKey) -> Sink:
        sink = self._sinks.get(key)
        if sink is None:
            sink = self._sinks[key] = self.parts.sink(f"{key.table_id}.{key.job_name}")
            sink.committed_s = self.wrongs.dated_s[key.table_id]
        return sink

    def ranged_sink(self, key: JobKey) -> RangedSink:
        return self._ranged.setdefault(key.job, self.parts.ranged_sink(key))

    def sink_of(self, row: JobRow) -> Sink | RangeOfSink:
        """What the row's keys stand at."""
        return RangeOfSink(self.ranged_sink(row.key), row) if self.sharded else self.sink(row.key)

    def run_of(self, process: Process, iteration: Iteration) -> Run:
        if self.trouble_drawn.builds:
            return self.parts.built_run(process, iteration)
        return RangedRun(process, iteration) if self.sharded else self.parts.run(process, iteration)

    def committed_s(self, table: str, version: int) -> float:
        return self.wrongs.dated_s[table][version]

    def applied_up_to_s(self, row: JobRow) -> float:
        """Unix time up to which this registration has really applied all that was committed."""
        sink, committed_s = self.sink_of(row), self._committed_s[row.key.table_id]
        following = sink.content + 1 if sink.job_id == row.job_id else 0
        while self.further(row.key) and following in self.rowless[row.key.table_id]:
            following += 1
        return committed_s[following] if following < len(committed_s) else inf

    def lag_s(self, row: JobRow) -> float:
        """How stale a job really is that has come as far as the row says."""
        made_s, after = self._committed_s[row.key.table_id], row.watermark.version + 1
        return self.agenda.now_s - made_s[after] if after < len(made_s) else 0.0

    def made_at_s(self, table: str, version: int) -> float:
        """When the file of a commit was made, by the storage's clock; 0 if there is none."""
        made_s = self._committed_s[table]
        return made_s[version] if version < len(made_s) else 0.0

    def further(self, key: JobKey) -> tuple[str, ...]:
        """The tables that a job reads besides its own."""
        if not self.trouble_drawn.several or key.job_name != "j":
            return ()
        place = self.tables.index(key.table_id)
        return (self.tables[(place + 1) % len(self.tables)],)

    def covers(self, table: str, held: int, version: int) -> bool:
        """Whether rows as they were at version `held` are those of this one too."""
        return held >= 0 and all(each in self.rowless[table] for each in range(held + 1, version + 1))

    def log_lag_s(self) -> float:
        return 0.005 + self.random.random() * 0.1

    def an_owner(self) -> Process | None:
        """One that believes to be it; there may be several."""
        owners = [each for each in self.processes.values() if each.owner.leads and not each.paused]
        return self.random.choice(owners) if owners else None

    # --- what happens to it ------------------------------------------------------------------------------------

    def start(self, node_id: str) -> None:
        """Start a process of this node, unless one runs."""
        if node_id not in self.processes:
            self.note(node_id, "starts")
            process = Process(self, node_id, self._rates[node_id], self._wall_offsets[node_id])
            self.processes[node_id] = process
            process.start()

    def end(self, process: Process) -> None:
        """It is over, in order or not; a supervisor starts it again."""
        if process.alive:
            self.note(process.node_id, "ends")
            process.kill()
            del self.processes[process.node_id]
            wait_s = self.random.random() * (RESTART_S if self.calm else self.trouble.long_s)
            self.agenda.after(wait_s, partial(self.start, process.node_id))

    def link(self, node_id: str, link: Link) -> None:
        self.links[node_id] = link
        process = self.processes.get(node_id)
        if link is Link.OPEN and process is not None:
            for watch in list(process.watches):
                watch.mend()

    def go_on(self, process: Process) -> None:
        if process.alive and process.paused:
            self.note(process.node_id, "goes on")
            process.go_on()

    def new_version(self, table: str) -> None:
        self.sources[table] += 1
        if self.happens(self.trouble.rowless):
            self.rowless[table].add(self.sources[table])
        self._committed_s[table].append(self.agenda.now_s)
        self.wrongs.note_commit(table)
        for process in self.processes.values():
            self.wrongs.announce(process, table)

    def newest_repair(self, after: int, until: int) -> int:
        """Where builds are simulated every so many commits of a source one is a repair."""
        newest = until - until % REPAIR_EVERY
        return newest if self.trouble_drawn.builds and newest > after else 0

    def vacuum(self) -> None:
        self.staging.vacuum(self.aside.choice(self.tables))

    def befall(self, fault: Fault) -> None:
        """Something of this kind, for a while."""
        random, agenda = self.random, self.agenda
        node_id, other = random.choice(self.node_ids), random.choice(self.node_ids)
        process = self.processes.get(node_id)
        lasts_s = random.random() * self.trouble.long_s
        self.note("fault", f"{fault} {node_id} {other} for {lasts_s:.1f} s")
        match fault:
            case Fault.KILL if process is not None:
                self.end(process)
            case Fault.PAUSE if process is not None and not process.paused:
                process.pause()
                agenda.after(lasts_s, partial(self.go_on, process))
            case Fault.SUSPEND if process is not None and not process.paused:
                self._suspend(process)
            case Fault.LEAVE if process is not None:
                process.act(process.leave)
            case Fault.CUT:
                self._cut([(node_id, other), (other, node_id)], lasts_s)
            case Fault.ONE_WAY:
                self._cut([(node_id, other)], lasts_s)
            case Fault.STEP_CLOCK:
                self._step_clock(node_id, random.uniform(-100.0, 100.0))
            case Fault.STALL_LOG:
                self.log.stalled = True
                agenda.after(lasts_s, self._log_returns)
            case _:
                self._befall_etcd(fault, node_id, lasts_s)

    def _suspend(self, process: Process) -> None:
        """For less than every wait for a lease's end allows for, and not again before another lease."""
        now_s, longest_s = self.agenda.now_s, STANDS_STILL * self.parts.times.margin_s
        if now_s >= self._awake_until_s.get(process.node_id, 0.0):
            self._awake_until_s[process.node_id] = now_s + 2 * (self.ttls_s[process.node_id] + longest_s)
            process.suspend()
            self.agenda.after(self.aside.random() * longest_s, partial(self.go_on, process))

    def _befall_etcd(self, fault: Fault, node_id: str, lasts_s: float) -> None:
        agenda = self.agenda
        match fault:
            case Fault.LOSE_ETCD | Fault.DEAF_TO_ETCD:
                self.link(node_id, Link.CUT if fault is Fault.LOSE_ETCD else Link.DEAF)
                agenda.after(lasts_s, partial(self.link, node_id, Link.OPEN))
            case Fault.RESTART_ETCD if self.etcd.up:
                self.etcd.up = False
                agenda.after(lasts_s, self._etcd_returns)
            case Fault.RESTORE_ETCD if self.etcd.up:
                self.etcd.up = False
                self.etcd.restore()
                agenda.after(lasts_s, self._etcd_returns)
            case Fault.DELETE_ELECTION_KEY:
                for key, _ in self.etcd.prefixed("candidates/")[:1]:
                    self.etcd.delete(key)
            case _:
                pass

    def wish(self, wish: Wish) -> None:
        if wish in BUILD_WISHES:
            self.operators.steer(wish)
        else:
            self.operators.wish(wish)

    def _cut(self, ways: list[tuple[str, str]], lasts_s: float) -> None:
        for way in ways:
            self.wire.cuts[way] += 1
            self.agenda.after(lasts_s, partial(self._heal, way))

    def _heal(self, way: tuple[str, str]) -> None:
        if self.wire.cuts[way] > 0:
            self.wire.cuts[way] -= 1

    def _etcd_returns(self) -> None:
        if not self.etcd.up:
            self.etcd.restart()
            for watch in (watch for process in self.processes.values() for watch in process.watches):
                watch.broken = True
            for node_id in self.node_ids:
                self.link(node_id, self.links[node_id])

    def _log_returns(self) -> None:
        self.log.stalled = False

    def _step_clock(self, node_id: str, by_s: float) -> None:
        self._wall_offsets[node_id] += by_s
        if node_id in self.processes:
            self.processes[node_id].wall_offset_s += by_s

    def end_all_trouble(self, trouble: Trouble) -> None:
        """Nothing goes wrong any more, but for what `trouble` still has; who was stopped goes on."""
        self.calm, self.trouble = True, trouble
        self.wrongs.put_clocks_right()
        self.wire.cuts.clear()
        self._log_returns()
        self._etcd_returns()
        for node_id in self.node_ids:
            self.link(node_id, Link.OPEN)
            self.start(node_id)
        for process in list(self.processes.values()):
            self.go_on(process)

    # --- what is seen of it ------------------------------------------------------------------------------------

    @property
    def sinks(self) -> Iterable[Sink]:
        return self._sinks.values()

    def placed(self) -> dict[ShardId, list[str]]:
        """Where each shard is taken in."""
        found: dict[ShardId, list[str]] = {}
        for process in self.processes.values():
            for shard in process.engine.shards:
                found.setdefault(shard, []).append(process.node_id)
        return found
