"""An owner of very many tables and nodes: `python -m benchmarks.owner [--json]`.

The owner's loop, machine, outgoing queues, wire format and job log are the real ones; the nodes are simulated, all in
one process beside it, and answer at once. Each has a queue and a thread of its own at the owner, as its stream has. For
each number of tables, in a process of its own:

- `load_s`: from the election to the first announce: the term is claimed, and the log's jobs are loaded.
- `settle_s`: from there until the owner knows that every table runs, and has nothing more to say.
- `thread_cpu_s`, `process_cpu_s`: what both together take of a processor: the owner's thread, and all threads of its
  process, which also encode, send, read and decode. Other work on the machine prolongs what is measured by the clock,
  and these hardly.
- `dispatches_per_table`: what the nodes were sent. `revoked`: nodes that the owner gave up on; none has any fault.
- `peak_gib`: the most memory that the owner's process had; `table_bytes`: for each table, beside what it began with.

Of each table, of the most tables over the fewest: `growth` is `thread_cpu_s`, `growth_process` `process_cpu_s`, and
`growth_wall` what the clock says of both parts. `ring_refresh_s`: what it takes the thread that builds it to make the
ring of 1,000 nodes, one of which is new, in seconds of a processor (the median of several); the first, where all are
new, is `ring_first_s`.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing import get_context
from multiprocessing.connection import Connection

import click

from benchmarks.progress import report_progress
from iscp.cluster.owner.owner_events import JobLogAccess, OwnerHooks
from iscp.cluster.owner.owner_loop import OwnerLoop
from iscp.cluster.owner_machine import OwnerMachine
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.job.job_row import LogEntry
from iscp.model.protocol.events import CoordinationTimes
from iscp.model.protocol.messages import Alive, DispatchTable, NodeMessage, OwnerMessage
from iscp.model.settings.config import JobLogConfig
from iscp.model.values.errors import Unavailable
from iscp.model.values.ids import NodeRecord
from iscp.model.values.ring import Ring
from iscp.ports.cluster import ClusterPorts
from iscp.server.node.node_messages import decode_node, decode_owner, encode_node, encode_owner
from iscp.server.node.node_server import FrameReader, Outgoing, Unreadable, cut
from iscp.system.failpoints import EnvironmentFailpoints
from iscp.system.threads import SystemClock, collect_rarely
from iscp.wire.v1 import node_pb2 as pb
from tests.fakes.etcd import FakeCheckpoints, FakeElection, FakeEtcd, FakeLogMarks, FakeMembership, FakeOverrides
from tests.fakes.prompt_nodes import EPOCH, answers, job_rows, node_records

AIM_DISPATCHES = 1.2
AIM_GROWTH = 1.3
AIM_REFRESH_S = 0.2
NODES = 200
TABLES = (100_000, 1_000_000)
RING_NODES = 1_000
REFRESHES = 7
COMMIT_ROWS = 50_000
SETTLE_TIMEOUT_S = 3_600.0
LOOK_S = 0.2
TIMES = CoordinationTimes()


@dataclass(frozen=True, slots=True)
class Measured:
    tables: int
    load_s: float
    settle_s: float
    tables_per_s: int
    thread_cpu_s: float
    process_cpu_s: float
    dispatches_per_table: float
    revoked: int
    peak_gib: float
    table_bytes: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The clock, and the processor's time of the thread that reads it, and of all its process's."""

    at_s: float
    thread_s: float
    process_s: float

    @classmethod
    def now(cls) -> Reading:
        return cls(time.monotonic(), time.thread_time(), time.process_time())


# --- the nodes' process ----------------------------------------------------------------------------------------------


class Nodes:
    """All nodes, in one thread: each takes on whatever it is sent, and says so; `dispatches` counts that."""

    def __init__(self, wire: Connection, count: int) -> None:
        self._wire = wire
        self._readers = [FrameReader(decode_owner, Unreadable()) for _ in range(count)]
        self._owner_rev = 0
        self.dispatches = 0

    def run(self) -> None:
        """Say that it is there; until an empty frame comes in, which is answered with the count."""
        self._wire.send_bytes(b"")
        alive_s = time.monotonic() + TIMES.alive_s
        while True:
            if self._wire.poll(max(0.0, alive_s - time.monotonic())):
                raw = self._wire.recv_bytes()
                if not raw:
                    self._wire.send_bytes(b"\xff\xff" + self.dispatches.to_bytes(8, "big"))
                    return
                node = int.from_bytes(raw[:2], "big")
                heard = self._readers[node].take(pb.Frame.FromString(raw[2:]))
                self._note(heard)
                self._say(node, [answer for message in heard for answer in answers(message)])
            if time.monotonic() >= alive_s:
                alive_s += TIMES.alive_s
                for node in range(len(self._readers) if self._owner_rev else 0):
                    self._say(node, [Alive(self._owner_rev, EPOCH)])

    def _note(self, heard: Sequence[OwnerMessage]) -> None:
        self._owner_rev = max((message.owner_rev for message in heard), default=self._owner_rev)
        self.dispatches += sum(isinstance(message, DispatchTable) for message in heard)

    def _say(self, node: int, messages: Sequence[NodeMessage]) -> None:
        for frame in cut(map(encode_node, messages)):
            self._wire.send_bytes(node.to_bytes(2, "big") + frame.SerializeToString())


def play_nodes(wire: Connection, count: int) -> None:
    Nodes(wire, count).run()


# --- the owner's process ---------------------------------------------------------------------------------------------


class Streams:
    """The owner's end of the wire: a queue and a sending thread for each node, and one thread that reads for all."""

    def __init__(self, wire: Connection, count: int, heard: Callable[[int, list[NodeMessage]], None]) -> None:
        self._wire = wire
        self._heard = heard
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._outgoing: list[Outgoing[OwnerMessage]] = [Outgoing(encode_owner, f"{n}") for n in range(count)]
        self._readers = [FrameReader(decode_node, Unreadable()) for _ in range(count)]
        self.dispatches = 0
        self._threads = [threading.Thread(target=self._send, args=(n,), daemon=True) for n in range(count)]
        self._reading = threading.Thread(target=self._read, daemon=True)

    def start(self) -> None:
        for thread in (*self._threads, self._reading):
            thread.start()

    def put(self, node: int, message: OwnerMessage) -> None:
        self._outgoing[node].put(message)

    def close(self) -> None:
        """The nodes' count of dispatches is there afterwards."""
        self._ended.set()
        for outgoing in self._outgoing:
            outgoing.wake()
        for thread in self._threads:
            thread.join()
        self._wire.send_bytes(b"")
        self._reading.join()

    def _send(self, node: int) -> None:
        for frame in self._outgoing[node].frames(self._ended):
            raw = node.to_bytes(2, "big") + frame.SerializeToString()
            with self._sending:
                self._wire.send_bytes(raw)

    def _read(self) -> None:
        while True:
            raw = self._wire.recv_bytes()
            node = int.from_bytes(raw[:2], "big")
            if node == 0xFFFF:
                self.dispatches = int.from_bytes(raw[2:], "big")
                return
            self._heard(node, self._readers[node].take(pb.Frame.FromString(raw[2:])))


def write_log(root: str, tables: int) -> None:
    """A process of its own has written it: what that took is not to count."""
    joblog = DeltaJobLog(root, SystemClock(), EnvironmentFailpoints({}))
    joblog.claim_term()
    rows = job_rows(tables)
    while batch := list(islice(rows, COMMIT_ROWS)):
        joblog.append([LogEntry(row) for row in batch])


def settle(root: str, tables: int, nodes: int) -> Measured:
    collect_rarely()  # as a node's process does
    clock = SystemClock()
    etcd, records = FakeEtcd(clock), node_records(nodes)
    for record in records:
        FakeMembership(etcd).register(record)
    election, membership = FakeElection(etcd), FakeMembership(etcd)
    numbers = {record.node_id: number for number, record in enumerate(records)}
    ours, theirs = get_context("spawn").Pipe()
    playing = get_context("spawn").Process(target=play_nodes, args=(theirs, nodes), daemon=True)
    playing.start()
    assert ours.recv_bytes() == b"", "the nodes are there"
    loaded: list[Reading] = []
    streams = Streams(ours, nodes, lambda node, messages: loop.receive(records[node].node_id, messages))

    def send(record: NodeRecord, message: OwnerMessage) -> None:
        if not loaded:
            loaded.append(Reading.now())
        streams.put(numbers[record.node_id], message)

    loop = OwnerLoop(
        OwnerMachine(records[0].node_id, "bench", TIMES),
        JobLogAccess(lambda: DeltaJobLog(root, clock, EnvironmentFailpoints({})), JobLogConfig(uri=root)),
        ClusterPorts(membership, election, FakeOverrides(etcd), FakeCheckpoints(etcd), FakeLogMarks(etcd)),
        clock,
        OwnerHooks(send, lambda members: None, lambda: None, lambda error: os._exit(3)),
    )
    streams.start()
    loop.start()
    before_bytes, began = peak_bytes(), loop.query(lambda loop: Reading.now())
    membership.watch(loop.on_members_changed)
    election.campaign(records[0].node_id, loop.on_elected, loop.on_lost)
    settled = until_settled(loop)
    loop.close()
    streams.close()
    playing.join()
    settle_s = settled.at_s - loaded[0].at_s
    return Measured(
        tables=tables,
        load_s=round(loaded[0].at_s - began.at_s, 2),
        settle_s=round(settle_s, 2),
        tables_per_s=round(tables / settle_s),
        thread_cpu_s=round(settled.thread_s - began.thread_s, 2),
        process_cpu_s=round(settled.process_s - began.process_s, 2),
        dispatches_per_table=round(streams.dispatches / tables, 4),
        revoked=len({record.node_id for record in etcd.revoked}),
        peak_gib=round(peak_bytes() / 2**30, 2),
        table_bytes=round((peak_bytes() - before_bytes) / tables),
    )


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def until_settled(loop: OwnerLoop) -> Reading:
    """When it had, as the owner's own thread has it."""

    def look(loop: OwnerLoop) -> Reading | None:
        return Reading.now() if len(loop.machine.assignments) > 0 and loop.machine.settled else None

    end_s = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < end_s:
        with suppress(Unavailable):  # it loads or places, and has no time for questions
            if (settled := loop.query(look)) is not None:
                return settled
        time.sleep(LOOK_S)
    raise TimeoutError(f"not settled after {SETTLE_TIMEOUT_S:g} s")


def measure(tables: int, nodes: int) -> Measured:
    """Each part in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="iscp-owner-") as root:
        with ProcessPoolExecutor(1, get_context("spawn")) as writing:
            writing.submit(write_log, root, tables).result()
        with ProcessPoolExecutor(1, get_context("spawn")) as settling:
            # Its process may have a process, unlike a daemonic one's.
            return settling.submit(settle, root, tables, nodes).result()


def ring_times_s() -> tuple[float, float]:
    """The first ring of 1,000 nodes, and one of which all nodes but one are known."""
    names = [f"bench-{number}" for number in range(RING_NODES)]
    began_s = time.thread_time()
    Ring(names)
    first_s, refreshes = time.thread_time() - began_s, []
    for number in range(REFRESHES):
        began_s = time.thread_time()
        Ring([*names[1:], f"new-{number}"])
        refreshes.append(time.thread_time() - began_s)
    return round(first_s, 3), round(statistics.median(refreshes), 3)


def growth(least: Measured, most: Measured, taken_s: Callable[[Measured], float]) -> float:
    return round(taken_s(most) / most.tables / (taken_s(least) / least.tables), 2)


@click.command()
@click.option("--tables", type=click.IntRange(min=1), multiple=True, default=TABLES, show_default=True)
@click.option("--nodes", type=click.IntRange(min=1, max=10_000), default=NODES, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(tables: tuple[int, ...], nodes: int, as_json: bool) -> None:
    """Measure an owner of many tables."""
    first_s, refresh_s = ring_times_s()
    report_progress("a ring", ring_nodes=RING_NODES, ring_refresh_s=refresh_s, ring_first_s=first_s)
    sizes = []
    for size in sorted(tables):
        sizes.append(measure(size, nodes))
        report_progress("an owner", **asdict(sizes[-1]))
    least, most = sizes[0], sizes[-1]
    dispatches = max(each.dispatches_per_table for each in sizes)
    revoked = sum(each.revoked for each in sizes)
    growths = {
        "growth": growth(least, most, lambda size: size.thread_cpu_s),
        "growth_process": growth(least, most, lambda size: size.process_cpu_s),
        "growth_wall": growth(least, most, lambda size: size.load_s + size.settle_s),
    }
    result = {
        "benchmark": "owner",
        "cpus": os.cpu_count(),
        "nodes": nodes,
        "dispatches_per_table": dispatches,
        "revoked": revoked,
        **growths,
        "ring_nodes": RING_NODES,
        "ring_refresh_s": refresh_s,
        "ring_first_s": first_s,
        "sizes": [asdict(each) for each in sizes],
        "aims": [
            {
                "aim": f"dispatches_per_table <= {AIM_DISPATCHES:g}",
                "measured": dispatches,
                "met": dispatches <= AIM_DISPATCHES,
            },
            {"aim": "revoked = 0", "measured": revoked, "met": revoked == 0},
            *(
                {"aim": f"{name} <= {AIM_GROWTH:g}", "measured": growths[name], "met": growths[name] <= AIM_GROWTH}
                for name in ("growth", "growth_process")
            ),
            {"aim": f"ring_refresh_s <= {AIM_REFRESH_S:g}", "measured": refresh_s, "met": refresh_s <= AIM_REFRESH_S},
        ],
    }
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
