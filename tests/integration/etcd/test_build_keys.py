"""The tasks of builds in a real etcd: what is written is loaded and followed, by the owner and nobody else."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Delete, Keys
from iscp.etcd.owner_keys import EtcdElection
from iscp.etcd.server import EtcdServer
from iscp.etcd.watched_keys import BuildKeys, EtcdBuilds
from iscp.model.build.build_state import (
    WRITES_OF_BUILDS_MAX,
    BeginTable,
    BuildState,
    Change,
    CountDone,
    DeleteTask,
    DropBuild,
    EndTable,
    ForgetBuilt,
    MarkBuilt,
    PutPlan,
    PutTask,
    SetPriority,
)
from iscp.model.build.build_task import BuildPlan, BuildTask, TaskType
from iscp.model.values.errors import Conflict, NotOwner
from iscp.model.values.ids import Leader
from iscp.model.values.progress import UNKNOWN, UNSIZED, SnapshotSize, TableSize
from iscp.ports.system import Clock
from iscp.system.threads import THREADS
from tests.fakes.waiting import until

PLAN = BuildPlan(
    "j1", "default", "flights", "full", "/lake/flüge", 7, '{"a": "b/c"}', 1 << 30, 3, SnapshotSize(1_000, 8_000, 16)
)


def task(number: int, aborted: bool = False) -> BuildTask:
    return BuildTask(f"1-{number:04}", TaskType.BUILD_RANGE, aborted, "flights", "j1", number, "n1")


@dataclass
class Term:
    """`again` gives another store of the same term, which knows nothing of what this one has written."""

    store: EtcdBuilds
    leader: Leader
    election: EtcdElection
    again: Callable[[], EtcdBuilds]

    def write(self, *changes: Change) -> None:
        self.store.write(self.leader, changes)


@pytest.fixture
def term(client: EtcdClient, clock: Clock, prefix: str) -> Iterator[Term]:
    keys = Keys(prefix)
    election = EtcdElection(client, keys, clock, lease_ttl_s=2.0, margin_s=0.5)
    elected, terms = threading.Event(), list[Leader]()

    def lead(leader: Leader) -> None:
        terms.append(leader)
        elected.set()

    election.campaign("n1", lead, lambda: None)
    assert elected.wait(10)

    def store() -> EtcdBuilds:
        return EtcdBuilds(client, election, keys, THREADS)

    yield Term(store(), terms[0], election, store)
    election.resign()


CHANGES: Sequence[Change] = (
    BeginTable("flights"),
    SetPriority("flights", -2),
    *(PutTask(task(number)) for number in range(8, 16)),
    PutPlan(PLAN),
    CountDone("j1", "n1", TableSize(10, 80)),
    CountDone("j1", "n2", TableSize(UNKNOWN, 40)),
    MarkBuilt("j0", 5),
)


def test_what_is_written_is_loaded(term: Term) -> None:
    assert term.store.load() == BuildState()
    term.write(*CHANGES)
    loaded = term.again().load()
    assert loaded == BuildState.of(CHANGES)
    assert loaded.plans["j1"].size == PLAN.size
    more = (
        PutTask(task(8, aborted=True)),
        DeleteTask("j1", task(9).task_id),
        CountDone("j1", "n1", TableSize(20, 160)),
        EndTable("flights"),
        SetPriority("flights", 0),
        ForgetBuilt("j0"),
    )
    term.write(*more)
    assert term.again().load() == BuildState.of([*CHANGES, *more])
    term.write(DropBuild("j1"))
    assert term.again().load() == BuildState()


def test_what_was_written_last_is_current_until_somebody_else_writes_or_it_is_gone(
    term: Term, client: EtcdClient, prefix: str
) -> None:
    term.store.load()
    assert term.store.is_current(), "of nothing too"
    term.write(*CHANGES)
    assert term.store.is_current()
    other = term.again()
    other.load()
    assert other.is_current()
    other.write(term.leader, [EndTable("flights")])
    assert not term.store.is_current()
    client.txn((), (Delete(Keys(prefix).builds, prefix=True),))
    assert not other.is_current()
    assert other.load() == BuildState()
    assert other.is_current()


def test_a_job_that_is_built_has_no_plan_left(term: Term) -> None:
    term.store.load()
    term.write(PutPlan(PLAN))
    term.write(MarkBuilt("j1", 7))
    assert term.again().load() == BuildState(built={"j1": 7})


def test_a_plan_that_an_earlier_version_wrote_is_the_same_one_of_unknown_size(
    term: Term, client: EtcdClient, prefix: str
) -> None:
    """So that nothing is built again for what it does not say."""
    term.store.load()
    term.write(PutPlan(PLAN))
    (kv,) = (kv for kv in client.list_prefix(Keys(prefix).builds).items if "/plans/" in kv.key)
    record = json.loads(kv.value)
    del record["size"]
    client.put(kv.key, json.dumps(record).encode())
    found = term.again().load().plans["j1"]
    assert (found, found.size) == (PLAN, UNSIZED)


def test_the_largest_transaction_of_a_builder_is_taken(term: Term) -> None:
    term.store.load()
    term.write(*(PutTask(task(number)) for number in range(1, WRITES_OF_BUILDS_MAX + 1)))
    assert len(term.again().load().live) == WRITES_OF_BUILDS_MAX


def test_a_write_on_top_of_what_is_gone_changes_nothing(term: Term) -> None:
    """As one does whose answer was lost, and which comes into effect after its writer has read again."""
    late = term.again()
    term.store.load()
    late.load()
    term.write(*CHANGES)
    with pytest.raises(Conflict):
        late.write(term.leader, [DropBuild("j1")])
    late.load()
    late.write(term.leader, [ForgetBuilt("j0")])
    with pytest.raises(Conflict):
        term.write(DropBuild("j1"))
    assert term.again().load().plans == {"j1": PLAN}


def test_a_former_owner_changes_nothing(term: Term) -> None:
    term.store.load()
    term.election.resign()
    with pytest.raises(NotOwner):
        term.write(*CHANGES)
    assert term.again().load() == BuildState()


def test_a_node_follows_all_changes(term: Term) -> None:
    term.store.load()
    term.write(*CHANGES)
    states = [BuildState()]

    def read(changes: Sequence[Change]) -> None:
        states.append(BuildState.of(changes))

    def follow(changes: Sequence[Change]) -> None:
        for change in changes:
            states[-1].apply(change)

    close = term.store.watch(read, follow)
    try:
        until(lambda: states[-1] == BuildState.of(CHANGES))
        more: Sequence[Change] = (
            DeleteTask("j1", task(9).task_id),
            PutTask(task(8, aborted=True)),
            EndTable("flights"),
        )
        term.write(*more)
        until(lambda: states[-1] == BuildState.of([*CHANGES, *more]))
        term.write(DropBuild("j1"), ForgetBuilt("j0"), SetPriority("flights", 0))
        until(lambda: states[-1] == BuildState())
        assert len(states) == 2
    finally:
        close()


def test_a_node_reads_all_again_after_a_restart_of_etcd(
    server: EtcdServer,
    connect: Callable[..., EtcdClient],
    clock: Clock,
    prefix: str,
    kill_9: Callable[[EtcdServer], None],
) -> None:
    client = connect(server.endpoint)
    keys = Keys(prefix)
    election = EtcdElection(client, keys, clock, lease_ttl_s=2.0, margin_s=0.5)
    key = BuildKeys(keys.builds)
    reads: list[Sequence[Change]] = []
    close = EtcdBuilds(client, election, keys, THREADS).watch(reads.append, lambda changes: None)
    try:
        until(lambda: bool(reads))
        (write,) = key.writes_of(BeginTable("flights"))
        client.put(write.key, b"")
        kill_9(server)
        again = EtcdServer.start(server.data_dir, server.client_port, server.peer_port, clock=clock)
        until(lambda: len(reads) > 1)
        assert reads[-1] == [BeginTable("flights")]
        again.kill()
    finally:
        close()


def test_keys_that_others_wrote_are_passed_over(term: Term, client: EtcdClient, prefix: str) -> None:
    below = Keys(prefix).builds
    bad = {
        "tables/a/b": b"",
        "plans/j1": b"{}",
        "plans/j2": b"no json",
        "tasks/j1": b"",
        "tasks/j1/1": b'{"format": 1, "type": "build_range", "aborted": false, "table": "t", "range": 0, "node": "n"}',
        "tasks/j1/2": b'{"format": 1, "type": "other", "aborted": false, "table": "t", "range": 1, "node": "n"}',
        "built/j1": b"x",
        "staging/t/1": b'{"format": 1, "uri": "/t", "after": 9, "until": 8, "node": "n"}',
        "staging/t": b"{}",
        "kept/t": b'{"format": 1, "uri": "/t", "since": -2, "until": 8, "bytes": 0}',
        "priorities/t": b"1.5",
        "unknown/t": b"",
    }
    for key, value in bad.items():
        client.put(below + key, value)
    assert term.store.load() == BuildState()
