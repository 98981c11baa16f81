"""The lock queue of a changefeed's shard in a real etcd, with a holder that is killed or frozen.

As a program, it is such a holder, which takes the lock and stays. Arguments: etcd's endpoint, prefix, feed, shard, TTL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from iscp.changefeed.client.lock_wait import wait_for_lock
from iscp.changefeed.etcd.locks import MARGIN_S, TTL_S, EtcdFeedLocks
from iscp.changefeed.model.lock_queue import FeedLocks, HeldLock, Incidents, QueueLimits
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.etcd.server import EtcdServer
from iscp.model.values.errors import (
    ConfigurationError,
    FeedIncident,
    InvalidRequest,
    OutcomeUnknown,
    TimedOut,
    Unavailable,
)
from iscp.ports.system import Clock
from iscp.system.threads import SystemClock
from tests.fakes.etcd_proxy import AnswerLosingProxy

Connect = Callable[..., EtcdClient]
Eventually = Callable[..., float]
Signal = Callable[[EtcdServer], None]

ROOT = Path(__file__).parents[3]
FEED, SHARD = "0191b6c8-feed-7000-8000-000000000001", "s1"
LONG_S = 30.0
PATIENT = QueueLimits(timeout_s=2.0)
"""On a busy machine a whole second may pass in a turn of which nothing is wrong."""
OVERTAKEN_WITHIN_S = TTL_S * 0.6
"""Less than what is left of a lease, which is renewed after a third of its TTL."""


@pytest.fixture
def keys(prefix: str) -> Keys:
    return Keys(prefix)


@pytest.fixture
def writer(client: EtcdClient, keys: Keys, clock: Clock) -> Iterator[Callable[..., EtcdFeedLocks]]:
    """Writer processes, as far as etcd can see: each has a lease of its own."""
    with ExitStack() as stack:

        def made(name: str = "w", through: EtcdClient = client, ttl_s: float = TTL_S) -> EtcdFeedLocks:
            return stack.enter_context(EtcdFeedLocks(through, keys, clock, name=name, ttl_s=ttl_s))

        yield made
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("etcd-lease")]


@pytest.fixture
def line(client: EtcdClient, keys: Keys) -> Callable[..., list[str]]:
    """The names of those who stand in line, the oldest first."""

    def standing(incidents: int = 0) -> list[str]:
        items = client.list_prefix(keys.feed_queue(FEED, SHARD, incidents)).items
        return [kv.value.decode() for kv in sorted(items, key=lambda kv: kv.create_revision)]

    return standing


def got(locks: FeedLocks, wait_s: float = LONG_S, incidents: int = 0, shard: str = SHARD) -> HeldLock:
    lock = locks.try_lock(FEED, shard, incidents, wait_s)
    assert lock is not None
    return lock


# --- the lock ----------------------------------------------------------------------------------------------------


def test_one_at_a_time_of_eight_threads_in_two_processes(
    writer: Callable[..., EtcdFeedLocks], line: Callable[..., list[str]]
) -> None:
    """Half of them share a lease: they queue all the same."""
    processes, inside, most, turns = (writer("a"), writer("b")), 0, 0, 0
    changing = threading.Lock()

    def work(number: int) -> None:
        nonlocal inside, most, turns
        for _ in range(5):
            lock = got(processes[number % 2])
            with changing:
                inside, turns = inside + 1, turns + 1
                most = max(most, inside)
            time.sleep(0.002)
            assert lock.held
            with changing:
                inside -= 1
            lock.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert (most, turns) == (1, 40)
    assert line() == []


def test_writers_have_their_turns_in_the_order_in_which_they_came(
    writer: Callable[..., EtcdFeedLocks], line: Callable[..., list[str]], eventually: Eventually
) -> None:
    first, served = got(writer("first")), list[str]()

    def wait(name: str, locks: EtcdFeedLocks) -> None:
        lock = got(locks)
        served.append(name)
        lock.release()

    names = [f"w{number}" for number in range(5)]
    threads = []
    for name in names:
        threads.append(threading.Thread(target=wait, args=(name, writer(name)), daemon=True))
        threads[-1].start()
        eventually(lambda name=name: line()[-1] == name)
    assert line() == ["first", *names]
    first.release()
    for thread in threads:
        thread.join(LONG_S)
    assert served == names


def test_who_waits_in_vain_leaves_no_key_behind(
    writer: Callable[..., EtcdFeedLocks], line: Callable[..., list[str]], clock: Clock
) -> None:
    held, other = got(writer("holder")), writer("other")
    for wait_s in (0.02, 0.5):
        began_s = clock.monotonic_s()
        assert other.try_lock(FEED, SHARD, 0, wait_s) is None
        assert wait_s <= clock.monotonic_s() - began_s < wait_s + 2
        assert line() == ["holder"]
    assert held.held
    held.release()
    assert got(other, wait_s=0.02).held, "one try is enough where nobody is before"


def test_locks_of_other_shards_and_counts_are_other_locks(writer: Callable[..., EtcdFeedLocks]) -> None:
    locks = writer()
    held = [got(locks), got(locks, incidents=1), got(locks, incidents=10), got(locks, shard="s2")]
    assert all(lock.held for lock in held)


def test_a_lock_is_released_once(writer: Callable[..., EtcdFeedLocks], line: Callable[..., list[str]]) -> None:
    """A second release takes nothing from the one who follows."""
    locks = writer()
    first = got(locks)
    first.release()
    second = got(locks)
    first.release()
    assert (first.held, second.held) == (False, True)
    assert line() == ["w"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "-a", "ä", "a b", "a" * 129])
def test_names_that_would_be_other_keys_are_refused(writer: Callable[..., EtcdFeedLocks], name: str) -> None:
    locks = writer()
    with pytest.raises(InvalidRequest, match="feed"):
        locks.incidents(name, SHARD)
    with pytest.raises(InvalidRequest, match="shard"):
        locks.try_lock(FEED, name, 0, 0.0)


# --- its lease ---------------------------------------------------------------------------------------------------


def test_a_lease_that_is_gone_is_followed_by_another(
    writer: Callable[..., EtcdFeedLocks], client: EtcdClient, keys: Keys, line: Callable[..., list[str]]
) -> None:
    locks = writer(ttl_s=4)
    lost = got(locks)
    client.revoke(client.list_prefix(keys.feed_queue(FEED, SHARD, 0)).items[0].lease_id)
    assert line() == []
    found = got(locks, wait_s=0.02)
    assert (lost.held, found.held) == (False, True), "etcd has said that the first one's lease is gone"
    lost.release()
    assert line() == ["w"]


def test_who_loses_its_place_while_it_waits_takes_another_and_waits_on(
    writer: Callable[..., EtcdFeedLocks],
    client: EtcdClient,
    keys: Keys,
    line: Callable[..., list[str]],
    eventually: Eventually,
) -> None:
    """A refusal at once would look like an incident."""
    held = got(writer("holder"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(got, writer("waiter"))
        eventually(lambda: line() == ["holder", "waiter"])
        items = {kv.value: kv for kv in client.list_prefix(keys.feed_queue(FEED, SHARD, 0)).items}
        client.revoke(items[b"waiter"].lease_id)
        client.delete(items[b"holder"].key)  # and is heard of only now
        assert waiting.result(LONG_S).held
    assert line() == ["waiter"]
    held.release()


def test_a_key_that_cannot_be_deleted_ends_with_its_lease(
    server: EtcdServer,
    connect: Connect,
    keys: Keys,
    writer: Callable[..., EtcdFeedLocks],
    freeze: Signal,
    thaw: Signal,
    eventually: Eventually,
) -> None:
    looking, standing = connect(server.endpoint), keys.feed_queue(FEED, SHARD, 0)
    locks = writer(through=connect(server.endpoint, timeout_s=1.0), ttl_s=4)
    lock = got(locks)
    locks.check()
    freeze(server)
    lock.release()
    with pytest.raises(Unavailable):
        locks.check()
    thaw(server)
    eventually(lambda: not looking.list_prefix(standing).items)
    assert got(locks).held
    locks.close()
    assert not looking.list_prefix(standing).items


def test_a_place_that_may_have_been_taken_ends_with_its_lease(
    shared_server: EtcdServer,
    connect: Connect,
    writer: Callable[..., EtcdFeedLocks],
    line: Callable[..., list[str]],
    eventually: Eventually,
) -> None:
    """The key is made and its maker gets no answer; all is well again at once; the lease could be renewed for ever."""
    with AnswerLosingProxy(shared_server.client_port) as proxy:
        locks = writer(through=connect(proxy.endpoint, timeout_s=1.0), ttl_s=4)
        got(locks).release()
        proxy.lose_answers()
        with pytest.raises(OutcomeUnknown):
            locks.try_lock(FEED, SHARD, 0, 0.0)
        proxy.pass_answers()
        proxy.cut()
        assert line() == ["w"]
        assert got(locks, shard="s2").held
        eventually(lambda: line() == [])
        locks.close()


def test_nothing_is_locked_any_more_after_close(
    writer: Callable[..., EtcdFeedLocks], line: Callable[..., list[str]]
) -> None:
    locks = writer()
    lock = got(locks)
    locks.close()
    assert not lock.held
    assert line() == []
    with pytest.raises(Unavailable, match="closed"):
        locks.try_lock(FEED, SHARD, 0, 0.0)


# --- incidents ---------------------------------------------------------------------------------------------------


def test_many_waiters_raise_the_count_once(writer: Callable[..., EtcdFeedLocks], clock: Clock) -> None:
    all_of_them = [writer(f"w{number}") for number in range(8)]
    assert all_of_them[0].incidents(FEED, SHARD) == Incidents(0, 0)
    for expected in (1, 2):
        seen = all_of_them[0].incidents(FEED, SHARD)
        with ThreadPoolExecutor(8) as pool:
            told = set(pool.map(lambda locks, seen=seen: locks.raise_incidents(FEED, SHARD, seen), all_of_them))
        assert told == {all_of_them[0].incidents(FEED, SHARD)}
        assert all_of_them[0].incidents(FEED, SHARD).count == expected
    (report,) = all_of_them[0].list_incidents(FEED)
    assert (report.shard, report.count) == (SHARD, 2)
    assert abs(report.raised_at_s - clock.now_s()) < LONG_S
    assert report.raised_by in {f"w{number}" for number in range(8)}


def test_who_does_not_hear_whether_it_has_raised_the_count_checks(
    shared_server: EtcdServer, connect: Connect, writer: Callable[..., EtcdFeedLocks], eventually: Eventually
) -> None:
    direct = writer()
    with AnswerLosingProxy(shared_server.client_port) as proxy, ThreadPoolExecutor(1) as pool:
        locks = writer(through=connect(proxy.endpoint))
        assert locks.incidents(FEED, SHARD) == Incidents()
        proxy.lose_answers()
        raising = pool.submit(locks.raise_incidents, FEED, SHARD, Incidents())
        eventually(lambda: direct.incidents(FEED, SHARD).count == 1)
        proxy.pass_answers()
        proxy.cut()
        assert raising.result(LONG_S) == direct.incidents(FEED, SHARD)


def test_the_incidents_of_a_feed_are_listed_by_shard(
    writer: Callable[..., EtcdFeedLocks], client: EtcdClient, keys: Keys
) -> None:
    locks = writer()
    for shard in ("s2", "s1", "s3"):
        locks.raise_incidents(FEED, shard, Incidents())
    got(locks)
    locks.raise_incidents("another", "s9", Incidents())
    client.put(keys.feed_incidents(FEED, "s3"), b"many")
    assert [report.shard for report in locks.list_incidents(FEED)] == ["s1", "s2"], "what is unreadable is passed over"
    with pytest.raises(ConfigurationError, match="Delete the key"):
        locks.incidents(FEED, "s3")


# --- in line -----------------------------------------------------------------------------------------------------


@pytest.fixture
def holder(shared_server: EtcdServer, prefix: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A process that holds the lock of the present count, for as long as it lives."""
    with ExitStack() as stack:

        def started(ttl_s: float = TTL_S) -> subprocess.Popen[str]:
            command = [sys.executable, __file__, shared_server.endpoint, prefix, FEED, SHARD, str(ttl_s)]
            child = stack.enter_context(
                subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(child.kill)
            assert child.stdout is not None
            assert child.stdout.readline() == "holds\n"
            return child

        yield started


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_holder_that_is_gone_costs_the_others_one_timeout_and_not_its_lease(
    writer: Callable[..., EtcdFeedLocks],
    holder: Callable[..., subprocess.Popen[str]],
    line: Callable[..., list[str]],
    clock: Clock,
    end: signal.Signals,
) -> None:
    """Four writers wait at once, all find the incident, and the count is raised once."""
    child = holder()
    os.kill(child.pid, end)
    commits = [0]

    def write(locks: EtcdFeedLocks) -> tuple[int, float]:
        """How many incidents were reported to it, and how long it took until it had written."""
        began_s = clock.monotonic_s()
        for incidents in range(4):
            try:
                lock = wait_for_lock(locks, clock, FEED, SHARD, lambda: commits[-1], PATIENT)
            except FeedIncident:
                continue
            assert lock.held
            commits.append(commits[-1] + 1)
            lock.release()
            return incidents, clock.monotonic_s() - began_s
        raise AssertionError("no end of incidents")

    writers = [writer(f"w{number}") for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(write, writers))
    assert max(incidents for incidents, _ in written) == 1
    assert PATIENT.timeout_s < max(took_s for _, took_s in written) < OVERTAKEN_WITHIN_S
    assert writers[0].incidents(FEED, SHARD).count == 1
    assert (line(0), line(1)) == (["holder"], []), "the holder's key is left to its lease"


def test_a_holder_that_wakes_up_after_its_lease_knows_that_it_does_not_hold(
    holder: Callable[..., subprocess.Popen[str]], writer: Callable[..., EtcdFeedLocks], client: EtcdClient, keys: Keys
) -> None:
    child = holder(ttl_s=4)
    (key,) = client.list_prefix(keys.feed_queue(FEED, SHARD, 0)).items
    assert asked(child) == "True"
    os.kill(child.pid, signal.SIGSTOP)
    client.revoke(key.lease_id)
    got(writer()).release()
    time.sleep(4 - MARGIN_S)
    os.kill(child.pid, signal.SIGCONT)
    assert asked(child) == "False"


def asked(child: subprocess.Popen[str]) -> str:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return child.stdout.readline().strip()


def test_a_long_line_that_moves_is_no_incident(
    writer: Callable[..., EtcdFeedLocks], clock: Clock, line: Callable[..., list[str]]
) -> None:
    locks, states = writer(), count()
    held = got(locks)
    limits = QueueLimits(timeout_s=0.2, wait_max_s=0.5)
    with pytest.raises(TimedOut, match=r"has waited for 0\.[5-9]|for [1-4]\."):
        wait_for_lock(locks, clock, FEED, SHARD, lambda: next(states), limits)
    assert locks.incidents(FEED, SHARD) == Incidents()
    assert held.held
    assert line() == ["w"]


def test_who_is_queued_without_a_connection_gets_an_error(
    server: EtcdServer, connect: Connect, writer: Callable[..., EtcdFeedLocks], clock: Clock, freeze: Signal
) -> None:
    locks = writer(through=connect(server.endpoint, timeout_s=1.0))
    freeze(server)
    with pytest.raises(Unavailable):
        wait_for_lock(locks, clock, FEED, SHARD, lambda: 0)


def hold(endpoint: str, prefix: str, feed: str, shard: str, ttl_s: str) -> None:
    """Until stdin ends; each line of it queries whether the lock is held."""
    clock = SystemClock()
    with EtcdClient(EtcdSettings((endpoint,)), clock) as client:
        locks = EtcdFeedLocks(client, Keys(prefix), clock, name="holder", ttl_s=float(ttl_s))
        lock = wait_for_lock(locks, clock, feed, shard, lambda: 0)
        print("holds", flush=True)  # noqa: T201
        for _ in sys.stdin:
            print(lock.held, flush=True)  # noqa: T201


if __name__ == "__main__":
    hold(*sys.argv[1:])
