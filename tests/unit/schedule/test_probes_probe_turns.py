"""Storage that hangs keeps its own tables waiting, and no other; a table is probed once at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf

import pytest

from iscp.model.values.ids import ShardId
from iscp.schedule.probes import (
    BATCH_MAX,
    SHARE_MAX,
    SLOW_FOR_S,
    SLOW_TABLES_MAX,
    ProbeTurn,
    ProbeTurns,
    ThreadShares,
)
from iscp.schedule.schedule_events import Probe

TIMEOUT_S = 10.0


def probe(uri: str, account: str = "a", shard: str = "") -> Probe:
    return Probe(ShardId(shard or f"id of {uri}"), uri, None, account)


def probes(place: str, count: int, account: str = "a") -> list[Probe]:
    return [probe(f"{place}/{account}-{n}", account) for n in range(count)]


def place_of(found: Probe) -> str:
    return found.uri.rpartition("/")[0]


class World:
    """Threads are there as many as are wanted; `running` are the turns that have one."""

    def __init__(self, threads_max: int = 64) -> None:
        self.now_s = 100.0
        far: Callable[[Probe], str] = lambda found: place_of(found) if found.uri.startswith("s3:") else ""  # noqa: E731
        shares = ThreadShares(threads_max)
        self.turns = ProbeTurns(TIMEOUT_S, far, lambda found: [place_of(found)], shares)
        self.running: list[ProbeTurn] = []
        self.answered: list[str] = []

    def offer(self, offered: Iterable[Probe]) -> None:
        self.turns.offer(list(offered))
        self.begin()

    def begin(self) -> None:
        while (turn := self.turns.begin(self.now_s)) is not None:
            self.running.append(turn)

    @property
    def common(self) -> ProbeTurn | None:
        return next((turn for turn in self.running if turn.share is None), None)

    def on(self, uri: str) -> ProbeTurn:
        return next(turn for turn in self.running if turn.share is not None and turn.probes[-1].uri == uri)

    @property
    def apart(self) -> list[str]:
        apart = [turn for turn in self.running if turn.share is not None]
        return [each.uri for turn in apart for each in (turn.probes[-1:] if turn.hung else turn.probes)]

    def stall(self, answered: int = 0) -> str:
        """The common thread hangs."""
        turn = self.common
        assert turn is not None
        hanging = turn.probes[answered]
        self.answered += [each.uri for each in turn.probes[:answered]]
        self.turns.stall(turn, answered, place_of(hanging), self.now_s)
        self.begin()
        return hanging.uri

    def end(self, turn: ProbeTurn, *, slow: bool = False, answered: int | None = None) -> bool:
        answered = len(turn.probes) if answered is None else answered
        self.running.remove(turn)
        self.answered += [each.uri for each in (turn.probes[-1:] if turn.hung else turn.probes[:answered])]
        last = turn.probes[answered - 1]
        current = self.turns.end(turn, answered, place_of(last), slow=slow, now_s=self.now_s)
        self.begin()
        return current

    def finish_common(self) -> None:
        while self.common is not None:
            self.end(self.common)

    def late(self) -> dict[str, str]:
        return {each.uri: each.why for each in self.turns.late(self.now_s)}


@pytest.fixture
def world() -> World:
    return World()


def test_tables_on_local_storage_are_probed_on_one_thread_in_batches(world: World) -> None:
    offered = probes("/m", BATCH_MAX + 1)
    world.offer(offered)
    assert [len(turn.probes) for turn in world.running] == [BATCH_MAX]
    world.finish_common()
    assert world.answered == [each.uri for each in offered]
    assert not world.turns.busy


def test_where_a_probe_hangs_another_thread_goes_on_with_the_next_table(world: World) -> None:
    offered = probes("/m", 10)
    world.offer(offered)
    assert world.stall(answered=3) == offered[3].uri
    assert world.common is not None
    assert list(world.common.probes) == offered[4:]
    world.finish_common()
    assert len(world.answered) == 9
    world.end(world.on(offered[3].uri))
    assert sorted(world.answered) == sorted(each.uri for each in offered)


def test_what_a_thread_had_not_begun_when_it_was_taken_for_hanging_is_probed_by_another(world: World) -> None:
    """It has answered just before another went on in its place, and stops then."""
    offered = probes("/m", 3)
    world.offer(offered)
    world.stall(answered=1)
    world.finish_common()
    world.end(world.on(offered[1].uri), answered=1)
    assert world.apart == [offered[1].uri]


def test_a_slow_table_has_a_thread_of_its_own_until_it_was_quick_for_a_while(world: World) -> None:
    slow, quick = probes("/m", 2)
    world.offer([slow])
    world.end(world.running[0], slow=True)
    world.offer([slow, quick])
    assert world.apart == [slow.uri]
    assert world.common is not None
    world.finish_common()
    world.end(world.on(slow.uri))
    world.now_s += SLOW_FOR_S
    world.offer([slow, quick])
    assert world.apart == []


def test_an_account_with_several_slow_tables_at_a_place_holds_the_common_thread_up_no_more(world: World) -> None:
    mine, others = probes("/m", SLOW_TABLES_MAX + 3), probes("/m", 3, "b")
    elsewhere = probe("/other/x")
    world.offer(mine)
    for _ in range(SLOW_TABLES_MAX):
        world.stall()
    assert world.common is None
    world.offer([*others, elsewhere])
    assert world.common is not None
    assert list(world.common.probes) == [*others, elsewhere], "those of others, and its own at other places"


def test_an_account_has_a_share_of_the_threads_at_a_place_and_its_others_wait(world: World) -> None:
    mine = probes("s3://hung", SHARE_MAX + 5)
    world.offer(mine)
    assert len(world.running) == SHARE_MAX
    world.offer([*probes("s3://hung", 1, "b"), *probes("s3://well", 1)])
    assert world.apart[SHARE_MAX:] == ["s3://hung/b-0", "s3://well/a-0"]
    world.end(world.on(mine[0].uri))
    assert world.apart[-1] == mine[SHARE_MAX].uri


def test_a_place_that_hangs_leaves_half_of_the_threads_to_others(world: World) -> None:
    for n in range(10):
        world.offer(probes("s3://hung", SHARE_MAX, f"account-{n}"))
    assert len(world.running) == 32
    for n in range(10):
        world.offer(probes("s3://hung-too", SHARE_MAX, f"account-{n}"))
    assert len(world.running) == 48
    world.offer(probes("s3://well", 4))
    assert len(world.running) == 52


def test_threads_are_bounded_whatever_hangs(world: World) -> None:
    for place in range(100):
        for account in range(4):
            world.offer(probes(f"s3://{place}", 3, f"account-{account}"))
    assert len(world.running) <= 64
    world.offer(probes("/well", 1))
    assert world.common is not None, "the common thread is none of them"


def test_a_file_system_where_two_accounts_hang_is_kept_off_the_common_thread(world: World) -> None:
    world.offer([*probes("/hung", 2), *probes("/hung", 2, "b")])
    assert world.stall() == "/hung/a-0"
    assert world.stall(answered=1) == "/hung/b-0"
    world.offer([*probes("/hung", 3, "c"), *probes("/well", 2)])
    world.finish_common()
    assert world.apart == ["/hung/a-0", "/hung/b-0", "/hung/b-1", "/hung/c-0", "/hung/c-1", "/hung/c-2"]
    assert world.answered == ["/hung/a-1", "/well/a-0", "/well/a-1"]


def test_a_table_is_probed_once_at_a_time_also_where_it_hangs(world: World) -> None:
    first = probe("/m/x", shard="range 1")
    world.offer([first])
    world.stall()
    again, of_another_range = probe("/m/x", shard="range 1"), probe("/m/x", shard="range 2")
    world.offer([again, of_another_range])
    assert world.apart == ["/m/x"]
    assert world.turns.counts == (0, 2)
    assert not world.end(world.running[0]), "it came back meanwhile: what was found is out of date"
    assert world.apart == ["/m/x", "/m/x"], "on one thread, one after the other"
    assert world.end(world.running[0])
    assert world.running == []


def test_a_probe_that_takes_too_long_is_late_once(world: World) -> None:
    world.offer([probe("/m/x")])
    world.stall()
    assert world.turns.next_late_s() == world.now_s + TIMEOUT_S
    world.now_s += TIMEOUT_S - 0.1
    assert world.late() == {}
    world.now_s += 0.1
    assert world.late() == {"/m/x": "the storage of /m/x does not answer since 10 s"}
    assert world.late() == {}
    assert world.turns.next_late_s() == inf
    assert world.turns.counts == (1, 0)


def test_what_waits_for_nothing_but_late_probes_is_late_too(world: World) -> None:
    world.offer(probes("s3://hung", SHARE_MAX + 1))
    world.offer(probes("s3://well", SHARE_MAX, "b"))
    world.now_s += TIMEOUT_S
    found = world.late()
    waits = f"s3://hung/a-{SHARE_MAX}"
    assert "waits for others of s3://hung" in found[waits]
    assert len(found) == 2 * SHARE_MAX + 1
    world.offer([probe("s3://hung/more")])
    assert list(world.late()) == ["s3://hung/more"]
    world.end(world.on("s3://hung/a-0"))
    assert waits in world.apart
    world.offer([probe("s3://hung/yet")])
    assert world.late() == {}, "one that is not late is under way, so that its turn comes"


def test_with_no_trouble_nothing_is_kept(world: World) -> None:
    world.offer([*probes("/m", 3), *probes("s3://b", 3)])
    for turn in list(world.running):
        world.end(turn)
    assert world.running == []
    assert world.turns.counts == (0, 0)
    assert not world.turns._shares._shares
