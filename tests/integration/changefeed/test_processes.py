"""Processes that write to one shard of a changefeed, and are killed and frozen meanwhile; and a reader that follows."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from iscp.changefeed import Changefeed
from iscp.system.failpoints import VARIABLE
from tests.fakes.changefeed_program import ROWS, rows_of

from .conftest import ON_S3_IN_FULL

Opened = Callable[..., Changefeed]
Eventually = Callable[..., float]

TIMEOUT_S = 1.0
SLACK_S = 1.5
"""On a machine that does much else; still far less than what a lease has left."""
KILLED = ("feed.turn=kill:4", "feed.write=kill:7", "feed.commit=kill:3", "feed.committed=kill:5")


class Writer:
    def __init__(self, uri: str, etcd: str, who: str, root: Path, failpoints: str = "") -> None:
        self.who, self._told = who, root / f"{who}.told"
        arguments = [uri, etcd, f"/{root.name}", "0", who, str(self._told), str(TIMEOUT_S)]
        command = [sys.executable, "-m", "tests.fakes.changefeed_program", *arguments]
        self.child = subprocess.Popen(command, env=os.environ | {VARIABLE: failpoints})

    def end(self) -> None:
        self.child.kill()
        self.child.wait()

    def lines(self) -> list[str]:
        return self._told.read_text().splitlines() if self._told.exists() else []

    def appends(self, word: str) -> set[int]:
        return {int(line.split()[1]) for line in self.lines() if line.startswith(word)}

    def committed(self) -> list[tuple[float, str]]:
        """When, and the first ulid."""
        return [(float(line.split()[2]), line.split()[3]) for line in self.lines() if line.startswith("has")]

    def freeze_in_its_turn(self, feed: Changefeed) -> int:
        """The transaction that it is in, and that is not committed."""
        for _ in range(2_000):
            self.child.send_signal(signal.SIGSTOP)
            word, number, *_ = (self.lines() or ["begins 0"])[-1].split()
            if word == "turn" and (self.who, int(number)) not in {(who, txn) for _, who, txn, _ in all_of(feed)}:
                return int(number)
            self.child.send_signal(signal.SIGCONT)
            time.sleep(0.005)
        raise AssertionError("it never has its turn")


class Follower:
    """Reads as they come, from the beginning, until it is requested to end."""

    def __init__(self, feed: Changefeed) -> None:
        self._feed = feed
        self._stop = threading.Event()
        self.seen: list[tuple[str, str, int, int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for page in self._feed.follow(limit=70, poll_s=0.02, stop=self._stop):
            self.seen += changes(page.rows.to_pylist())

    def end(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def changes(rows: list[dict[str, object]]) -> list[tuple[str, str, int, int]]:
    """Ulid, who, in which transaction, and the number in it."""
    return [(each["ulid_text"], *each["row"].values()) for each in rows]  # type: ignore[attr-defined]


def all_of(feed: Changefeed) -> list[tuple[str, str, int, int]]:
    return changes(feed.read(limit=1_000_000).rows.to_pylist())


@pytest.fixture
def writers(uri: str, etcd: str, tmp_path: Path) -> Iterator[Callable[..., Writer]]:
    with ExitStack() as stack:

        def started(who: str, failpoints: str = "") -> Writer:
            writer = Writer(uri, etcd, who, tmp_path, failpoints)
            stack.callback(writer.end)
            return writer

        yield started


def check(feed: Changefeed, follower: Follower, writers: list[Writer]) -> None:
    """Each change once and in order, for the reader too; all that was acknowledged, and nothing that was not begun."""
    there = all_of(feed)
    deadline_s = time.monotonic() + 30
    while len(follower.seen) < len(there) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    follower.end()
    assert follower.seen == there, "the reader has seen each change, once, and in its order"
    ulids = [ulid for ulid, *_ in there]
    assert ulids == sorted(set(ulids)), "no ulid twice, and none out of order"
    assert set(Counter((who, txn) for _, who, txn, _ in there).values()) <= {ROWS}, "as a whole and once"
    for writer in writers:
        mine = [(txn, number) for _, who, txn, number in there if who == writer.who]
        assert mine == sorted(mine), "in the order in which it wrote them"
        assert writer.appends("has") <= {txn for txn, _ in mine} <= writer.appends("begins")
        firsts = {ulid for ulid, who, _, number in there if who == writer.who and not number}
        assert {first for _, first in writer.committed()} <= firsts, "ulids are what was reported before the commit"


def trouble(uri_of: Opened, started: Callable[..., Writer], seed: int, failpoints: list[str], for_s: float) -> None:
    chance = random.Random(seed)
    feed = uri_of()
    writers = [started(f"w{n}", point) for n, point in enumerate(failpoints + [""] * (8 - len(failpoints)))]
    follower = Follower(feed)
    steady = writers[len(failpoints) :]
    deadline_s = time.monotonic() + 120
    while not all(writer.appends("has") or writer.child.poll() is not None for writer in writers):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        for writer in (frozen := chance.sample(steady[1:], chance.randint(0, 2))):
            writer.child.send_signal(signal.SIGSTOP)
        time.sleep(chance.choice([0.05, 0.3, TIMEOUT_S * 1.5]))
        for writer in frozen:
            writer.child.send_signal(signal.SIGCONT)
        if chance.random() < 0.1:
            chance.choice(steady[2:]).child.kill()
    for writer in writers:
        writer.end()
    check(feed, follower, writers)
    assert len(steady[0].appends("has")) > 1, "one that nobody disturbs gets through"


@ON_S3_IN_FULL
@pytest.mark.timeout(300)
def test_eight_write_to_a_shard_while_some_are_killed_and_frozen(
    opened: Opened, writers: Callable[..., Writer]
) -> None:
    trouble(opened, writers, 1, [KILLED[0], KILLED[3]], for_s=3.0)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(6))
def test_eight_write_to_a_shard_while_many_are_killed_and_frozen(
    opened: Opened, writers: Callable[..., Writer], seed: int
) -> None:
    """Those of the failpoints die at every step of a transaction."""
    trouble(opened, writers, seed, list(KILLED), for_s=60.0)


@pytest.mark.further  # each time: frozen ones among eight above, and test_transaction.py
@pytest.mark.timeout(300)
def test_a_frozen_writer_delays_the_others_by_a_timeout_and_its_own_commit_fails(
    opened: Opened,
    writers: Callable[..., Writer],
    etcd: str,
    tmp_path: Path,
    eventually: Eventually,
    record_property: Callable[[str, object], None],
) -> None:
    feed = opened(etcd, etcd_prefix=f"/{tmp_path.name}")
    follower = Follower(feed)
    doomed, *others = [writers(name) for name in ("doomed", "a", "b")]
    eventually(lambda: all(len(writer.appends("has")) > 2 for writer in (doomed, *others)), within_s=120)
    number = doomed.freeze_in_its_turn(feed)
    began_s = time.monotonic()
    eventually(lambda: sum(at_s > began_s for other in others for at_s, _ in other.committed()) > 10)
    times = sorted(at_s for other in others for at_s, _ in other.committed())
    pause_s = max(after - before for before, after in itertools.pairwise(times))
    record_property("longest_pause_s", pause_s)
    assert TIMEOUT_S * 0.9 < pause_s < TIMEOUT_S + SLACK_S
    (report,) = feed.incidents()
    assert (report.shard, report.raised_by in ("a", "b")) == ("0", True)
    assert number not in {txn for _, who, txn, _ in all_of(feed) if who == "doomed"}
    doomed.child.send_signal(signal.SIGCONT)
    eventually(lambda: number in doomed.appends("has"))
    assert f"lost {number} Conflict" in doomed.lines(), "it was reported, and nothing of it was there"
    for writer in (doomed, *others):
        writer.end()
    check(feed, follower, [doomed, *others])


@ON_S3_IN_FULL
@pytest.mark.parametrize(
    "point", [KILLED[0], KILLED[3], *(pytest.param(each, marks=pytest.mark.full) for each in KILLED[1:3])]
)
def test_after_a_kill_at_any_step_all_or_nothing_is_there(
    opened: Opened, writers: Callable[..., Writer], etcd: str, tmp_path: Path, point: str
) -> None:
    doomed = writers("doomed", point)
    assert doomed.child.wait(60) == -signal.SIGKILL
    feed = opened(etcd, etcd_prefix=f"/{tmp_path.name}")
    began_s = time.monotonic()
    with feed.transaction(0) as transaction:
        transaction.append(rows_of("other", 0))
    assert time.monotonic() - began_s < TIMEOUT_S + SLACK_S, "its lock holds for as long as its lease, and nobody waits"
    there = all_of(feed)
    ulids = [ulid for ulid, *_ in there]
    assert ulids == sorted(set(ulids))
    count = Counter(txn for _, who, txn, _ in there if who == "doomed")
    assert set(count.values()) == {ROWS}
    last = max(doomed.appends("begins"))
    assert doomed.appends("has") == set(range(last))
    assert (last in count) == point.startswith("feed.committed")
