"""Whose feeds a node reads, and how long a call waits for changes.

Searches have threads of their own: so many at a time, so many of each account, and each only so long.

The retention of sources is read of jobs that lag for long alone, and warns before history is gone.

Tables that a job holds are released when it is dropped, or registered again without that, and then alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from iscp.cluster.read_services import FIRST_CURSOR_CHARS_MAX, LAG_MIN_S, NodeFeeds, RetentionWatch, feed_turns
from iscp.cluster.requests.job_views import JobViews
from iscp.engine.account_turns import ANYWHERE, AccountTurns, PlaceGuard, TurnBounds
from iscp.model.access.authorization import AccountRoots
from iscp.model.api.api_requests import (
    RISK_SHARE,
    ChangePage,
    FeedChange,
    FeedRequest,
    JobName,
    JobView,
    RegisterRequest,
    ResyncRequest,
)
from iscp.model.job.job_row import JobRow
from iscp.model.job.source_holds import holder_of
from iscp.model.job.start_rule import DEATHS_MAX, Deaths
from iscp.model.spec.spec import ConsumerSpec
from iscp.model.values.errors import (
    CursorBehind,
    ErrorCode,
    InvalidRequest,
    IscpError,
    NodeKilled,
    QueueFull,
    StorageError,
    TableNotFound,
    TimedOut,
    Unavailable,
)
from iscp.ports.admin import still_wanted, want_while
from iscp.ports.source import TableDescription
from iscp.server.admin.admin_service import lagging_jobs
from iscp.system.threads import SystemClock
from tests.fakes.admin import FakeAdmin
from tests.fakes.catalog import FakeCatalog
from tests.fakes.clock import FakeClock
from tests.fakes.deaths import FakeDeaths
from tests.fakes.desk import OTHER, TABLE, Desk, X, asked, spec
from tests.fakes.job_feeds import NAME, register
from tests.fakes.job_feeds import TABLE as FED_TABLE
from tests.fakes.pipeline import FakeKind
from tests.fakes.waiting import until

PAGE = ChangePage((FeedChange("01J", 0, "insert", {"id": 1}),), '{"feed": "f", "shards": {"0": "01J"}}')
NOTHING = ChangePage((), '{"feed": "f", "shards": {}}')


@dataclass
class FakePages:
    """Port FeedPages: `answer` is what each read finds, `reads` the targets and cursors that were read."""

    answer: ChangePage | IscpError = PAGE
    reads: list[tuple[str, str, int]] = field(default_factory=list)

    def page(self, row: JobRow, cursor: str, limit: int) -> ChangePage:
        self.reads.append((row.spec.consumer.target, cursor, limit))
        if isinstance(self.answer, IscpError):
            raise self.answer
        return self.answer


class Read:
    """A node whose reads find what `pages` says."""

    def __init__(self, places: PlaceGuard = ANYWHERE) -> None:
        self.pages, self.deaths, self.clock = FakePages(), FakeDeaths(), SystemClock()
        self.service = NodeFeeds(self.pages.page, feed_turns(self.clock), self.clock, places, self.deaths)

    def read(self, request: FeedRequest = FeedRequest(), kind: str = "changefeed") -> ChangePage:  # noqa: B008  (frozen)
        return self.service.read(job(kind), request, lambda: True)


def job(kind: str = "changefeed") -> JobView:
    admin = FakeAdmin()
    register(admin, "/targets/feed", kind=kind)
    return admin.status(JobName(FED_TABLE, NAME, "acme"))


@pytest.fixture
def node() -> Iterator[Read]:
    made = Read()
    yield made
    made.service.close()


def test_the_target_of_the_job_is_read_behind_the_cursor(node: Read) -> None:
    assert node.read(FeedRequest("a cursor", 7)) == PAGE
    assert node.pages.reads == [("/targets/feed", "a cursor", 7)]
    assert (len(node.deaths.begun), node.deaths.at) == (1, [])


@pytest.mark.parametrize("kind", ["replica", "view", "fulltext"])
def test_a_job_of_another_kind_writes_no_feed(node: Read, kind: str) -> None:
    with pytest.raises(InvalidRequest, match=f"is of the kind {kind}, and writes no feed") as refused:
        node.read(kind=kind)
    assert (refused.value.field, node.pages.reads) == ("job", [])


def test_a_target_that_has_come_to_lie_outside_of_the_accounts_roots_is_not_read() -> None:
    elsewhere = PlaceGuard(AccountRoots({"acme": ("/lakes/acme",)}), lambda place: (place,), lambda root: root)
    node = Read(elsewhere)
    with pytest.raises(InvalidRequest) as refused:
        node.read()
    assert (refused.value.code, node.pages.reads) == (ErrorCode.OUTSIDE_ROOTS, [])
    node.service.close()


def test_a_feed_whose_reads_a_node_has_died_of_is_not_read_there_any_more(node: Read) -> None:
    node.deaths.known[job().job_id] = Deaths(DEATHS_MAX, 1.0, "Aborted")
    with pytest.raises(NodeKilled):
        node.read()
    assert node.pages.reads == []


def test_a_call_that_waits_for_nothing_answers_at_once(node: Read) -> None:
    node.pages.answer = NOTHING
    assert node.read() == NOTHING
    assert len(node.pages.reads) == 1


def test_a_call_waits_until_there_are_changes(node: Read) -> None:
    node.pages.answer = NOTHING
    with ThreadPoolExecutor() as callers:
        waiting = callers.submit(node.read, FeedRequest(wait_s=60.0))
        until(lambda: len(node.pages.reads) > 1)
        assert not waiting.done()
        node.pages.answer = PAGE
        assert waiting.result(30) == PAGE


def test_a_wait_ends_without_changes_when_its_time_is_over(node: Read) -> None:
    node.pages.answer = NOTHING
    began_s = time.monotonic()
    assert node.read(FeedRequest(wait_s=0.15)) == NOTHING
    assert time.monotonic() - began_s >= 0.15
    assert len(node.pages.reads) >= 2


def test_calls_that_wait_take_no_turns_of_those_that_read(node: Read) -> None:
    node.pages.answer = NOTHING
    with ThreadPoolExecutor(20) as callers:
        waiting = [callers.submit(node.read, FeedRequest(wait_s=60.0)) for _ in range(12)]
        until(lambda: len(node.pages.reads) >= 12)
        assert node.read() == NOTHING
        node.pages.answer = PAGE
        assert [each.result(30) for each in waiting] == [PAGE] * 12


def test_a_wait_ends_with_its_caller_and_with_the_node(node: Read) -> None:
    node.pages.answer, gone = NOTHING, threading.Event()
    with ThreadPoolExecutor() as callers:
        left = callers.submit(node.service.read, job(), FeedRequest(wait_s=60.0), lambda: not gone.is_set())
        stays = callers.submit(node.read, FeedRequest(wait_s=60.0))
        until(lambda: len(node.pages.reads) >= 2)
        gone.set()
        with pytest.raises(Unavailable):
            left.result(30)
        node.service.close()
        with pytest.raises(Unavailable):
            stays.result(30)
    with pytest.raises(Unavailable):
        node.read()


def test_a_job_that_has_not_begun_its_feed_has_no_changes_yet(node: Read) -> None:
    node.pages.answer = TableNotFound("there is no table")
    assert node.read() == ChangePage((), "")
    with pytest.raises(TableNotFound):
        node.read(FeedRequest("a cursor"))


def test_what_was_purged_is_refused_with_a_remedy_that_fits_into_an_answer(node: Read) -> None:
    short, long = "{short}", "x" * (FIRST_CURSOR_CHARS_MAX + 1)
    for first, remedy in ((short, "without a cursor, or behind {short}"), (long, "left: without a cursor")):
        node.pages.answer = CursorBehind("rows were purged", about="cursor", remedy="Begin", first_cursor=first)
        with pytest.raises(CursorBehind) as refused:
            node.read(FeedRequest("a cursor"))
        assert refused.value.remedy.endswith(remedy)
        assert (refused.value.field, refused.value.first_cursor) == ("cursor", first)


class Searched:
    """Turns of three at once, two of an account; searches run until `held` is set."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self.turns = AccountTurns(TurnBounds(3, 2, timeout_s), "search", "search", "Search for less")
        self.held = threading.Event()
        self.began: list[str] = []
        self.callers = ThreadPoolExecutor(20)

    def search(self, account: str, alive: Callable[[], bool] = lambda: True) -> Future[str]:
        def work() -> str:
            self.began.append(account)
            assert self.held.wait(20.0)
            return f"of {account}"

        return self.callers.submit(self.turns.run, account, work, alive)

    def close(self) -> None:
        self.held.set()
        self.turns.close()
        self.callers.shutdown()


@pytest.fixture
def searched() -> Iterator[Searched]:
    made = Searched()
    yield made
    made.close()


def test_an_account_takes_no_turn_of_others(searched: Searched) -> None:
    greedy = [searched.search("a") for _ in range(5)]
    until(lambda: searched.began == ["a", "a"])
    other = searched.search("b")
    until(lambda: searched.began == ["a", "a", "b"])
    late = searched.search("c")
    time.sleep(0.05)
    assert searched.began == ["a", "a", "b"]
    searched.held.set()
    assert [each.result(10) for each in (*greedy, other, late)] == ["of a"] * 5 + ["of b", "of c"]
    assert sorted(searched.began) == ["a"] * 5 + ["b", "c"]


def test_what_hangs_takes_its_own_accounts_share_and_no_turn_of_others(tmp_path: Path) -> None:
    """Pipes in the places of files of two accounts hold as many threads as there are turns."""
    turns = AccountTurns(TurnBounds(4, 2, 0.3), "read", "read", "Retry")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(8) as callers:
        hanging = [callers.submit(turns.run, account, pipe.read_bytes) for account in ("a", "a", "b", "b")]
        for future in hanging:
            with pytest.raises(TimedOut, match="took too long"):
                future.result(10)
        assert turns.hanging() == 4
        assert turns.run("c", lambda: "of c") == "of c"
        with pytest.raises(QueueFull, match="2 others of the account hang"):
            turns.run("a", lambda: "of a")
        pipe.write_bytes(b"")  # all of them end
        until(lambda: not turns.hanging())
        assert turns.run("a", lambda: "of a") == "of a"


def test_beyond_the_bound_of_threads_that_hang_turns_are_kept() -> None:
    turns = AccountTurns(TurnBounds(2, 2, 0.5, hanging_max=1), "read", "read", "Retry")
    held = threading.Event()
    try:
        for account in ("a", "b"):
            with pytest.raises(TimedOut):
                turns.run(account, held.wait)
        assert turns.run("c", lambda: 1) == 1, "one of the two hanging reads takes no turn"
        with pytest.raises(TimedOut):
            turns.run("c", held.wait)
        with pytest.raises(TimedOut, match="did not get its turn"):
            turns.run("d", lambda: 1)
    finally:
        held.set()


def test_one_more_is_refused_at_once_where_nobody_waits(searched: Searched) -> None:
    turns = AccountTurns(TurnBounds(2, 1, 20.0, waits=False), "read", "read", "Retry")
    began = threading.Event()

    def work() -> bool:
        began.set()
        return searched.held.wait(20.0)

    with ThreadPoolExecutor(1) as caller:
        caller.submit(turns.run, "a", work)
        assert began.wait(20.0)
        with pytest.raises(QueueFull, match="too many others of the account"):
            turns.run("a", lambda: 1)
        assert turns.run("b", lambda: 1) == 1
        searched.held.set()


def test_a_read_has_the_context_of_its_caller() -> None:
    turns = AccountTurns(TurnBounds(2, 2, 20.0), "read", "read", "Retry")
    with want_while(lambda: False):
        assert turns.run("a", still_wanted) is False
    assert turns.run("a", still_wanted) is True


def test_whoever_is_gone_waits_no_longer(searched: Searched) -> None:
    gone = searched.search("a", lambda: False)
    with pytest.raises(Unavailable):
        gone.result(10)
    for _ in range(2):
        searched.search("b")
    until(lambda: searched.began.count("b") == 2)
    with pytest.raises(Unavailable):
        searched.search("b", lambda: False).result(10)
    assert searched.began.count("b") == 2


def test_a_node_that_stops_begins_no_search(searched: Searched) -> None:
    for _ in range(2):
        searched.search("a")
    until(lambda: len(searched.began) == 2)
    waiting = searched.search("a")
    searched.turns.close()
    with pytest.raises(Unavailable):
        waiting.result(10)
    with pytest.raises(Unavailable):
        searched.search("b").result(10)


@pytest.mark.parametrize("error", [InvalidRequest("is wrong", field="text"), TimeoutError("of the storage")])
def test_the_error_of_a_search_is_that_of_the_call(searched: Searched, error: Exception) -> None:
    def work() -> str:
        raise error

    with pytest.raises(type(error)) as raised:
        searched.turns.run("a", work, lambda: True)
    assert raised.value is error


DAY_S = 86_400.0


class RetainingCatalog(FakeCatalog):
    """A catalog whose tables have these properties; `read` are those that were described."""

    def __init__(self, properties: Mapping[str, str], fault: Exception | None = None) -> None:
        super().__init__(TABLE)
        self.properties, self.fault = properties, fault
        self.described = list[str]()

    def describe(self, table: str) -> TableDescription:
        self.described.append(table)
        if self.fault is not None:
            raise self.fault
        return replace(super().describe(table), configuration=self.properties)


def watched(desk: Desk, catalog: RetainingCatalog, lag_s: float, places: PlaceGuard = ANYWHERE) -> RetentionWatch:
    """Watch a job that has applied version 5 of 7, and lags by so much."""
    job = desk.running()
    desk.reach(job, 5)
    views = JobViews(desk.world.owner, desk.nodes, lambda name: FakeKind(), desk.world.clock)
    clock = FakeClock(desk.admin.status(X).applied_at_s + lag_s)
    lagging: Any = LaggingViews(views, lag_s)
    watch = RetentionWatch(lagging_jobs(desk.world.owner, lagging, clock), catalog, places, clock)
    watch.turn()
    return watch


class LaggingViews:
    """The views of jobs, all of which lag by so much."""

    def __init__(self, views: JobViews, lag_s: float) -> None:
        self._views = views
        self._lag_s = lag_s

    def of(self, rows: list[object]) -> list[object]:
        return [replace(each, lag_s=self._lag_s) for each in self._views.of(rows)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("properties", "retained_s"),
    [
        ({}, 7 * DAY_S),
        ({"delta.deletedFileRetentionDuration": "interval 2 days"}, 2 * DAY_S),
        ({"delta.logRetentionDuration": "interval 1 day"}, DAY_S),
        ({"delta.deletedFileRetentionDuration": "interval 0 hours"}, 1.0),
        ({"delta.deletedFileRetentionDuration": "interval 3 months"}, 0.0),
    ],
)
def test_what_its_source_retains_is_known_of_a_job_that_lags(
    desk: Desk, properties: Mapping[str, str], retained_s: float
) -> None:
    watch = watched(desk, RetainingCatalog(properties), LAG_MIN_S)
    assert watch.retained_s(desk.row()) == retained_s


def test_of_a_job_that_hardly_lags_nothing_is_read(desk: Desk) -> None:
    catalog = RetainingCatalog({})
    assert watched(desk, catalog, LAG_MIN_S - 1).retained_s(desk.row()) == 0.0
    assert catalog.described == []


def test_a_table_that_cannot_be_read_or_is_not_the_accounts_is_not_known(desk: Desk) -> None:
    failing = RetainingCatalog({}, StorageError("it does not answer"))
    assert watched(desk, failing, DAY_S).retained_s(desk.row()) == 0.0
    catalog = RetainingCatalog({})
    roots = AccountRoots({desk.row().key.account: ("/elsewhere",)})
    guard = PlaceGuard(roots, lambda place: (place,), lambda root: root)
    assert watched(desk, catalog, DAY_S, guard).retained_s(desk.row()) == 0.0
    assert catalog.described == []


def test_a_node_that_is_the_owner_no_more_knows_nothing(desk: Desk) -> None:
    watch = watched(desk, RetainingCatalog({}), DAY_S)
    desk.world.owner.on_lost()
    until(lambda: desk.world.owner.writer is None)
    watch.turn()
    assert watch.retained_s(desk.world.storage.entries[-1][0]) == 0.0


def test_jobs_are_shown_with_it(desk: Desk) -> None:
    job = desk.running()
    desk.reach(job, 5)
    views = JobViews(
        desk.world.owner,
        desk.nodes,
        lambda name: FakeKind(),
        desk.world.clock,
        retained_s=lambda row: 9.0,
    )
    (view,) = views.of([desk.row()])
    assert view.retained_s == 9.0
    assert replace(view, lag_s=9.0 * RISK_SHARE + 1).may_lose_history
    assert not replace(view, lag_s=9.0 * RISK_SHARE).may_lose_history
    assert not replace(view, lag_s=1e9, retained_s=0.0).may_lose_history


BOTH = [TABLE.uri, OTHER.uri]


class HoldingKind(FakeKind):
    """Holds what its option says."""

    def held(self, spec: ConsumerSpec) -> Mapping[str, float]:
        return dict.fromkeys(spec.options.get("held", ()), 60.0)


def holding(desk: Desk, held: list[str]) -> str:
    """A job that does; how its sources name it."""
    desk.kind = HoldingKind()
    desk.admin.register([RegisterRequest(X, spec(options={"held": held}))])
    until(desk.world.runs)
    return holder_of(desk.row().key)


def test_a_job_that_is_dropped_holds_nothing_any_more(desk: Desk) -> None:
    holder = holding(desk, BOTH)
    for kept in ("pause", "resume"):
        asked(desk, kept, X)
    assert desk.holds.released == []
    assert asked(desk, "unregister", X)
    assert desk.holds.released == [(uri, holder) for uri in sorted(BOTH)]
    asked(desk, "unregister", X)
    assert len(desk.holds.released) == len(BOTH)


def test_a_resync_lets_go_of_what_the_job_holds_no_longer(desk: Desk) -> None:
    holder = holding(desk, BOTH)
    desk.admin.resync(ResyncRequest(X))
    assert desk.holds.released == []
    desk.admin.resync(ResyncRequest(X, spec_json=spec(options={"held": [OTHER.uri]})))
    assert desk.holds.released == [(TABLE.uri, holder)]


def test_a_table_that_cannot_be_reached_keeps_no_job_from_being_dropped(desk: Desk) -> None:
    desk.holds.refusals[OTHER.uri] = StorageError("is not there")
    holder = holding(desk, BOTH)
    assert asked(desk, "unregister", X)
    assert desk.holds.released == [(TABLE.uri, holder)]
