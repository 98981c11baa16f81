"""Whose feeds a node reads, and how long a call waits for changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from iscp.adapters.system.clock import SystemClock
from iscp.core.access.account_roots import AccountRoots
from iscp.core.api.api_requests import JobName
from iscp.core.api.api_views import JobView
from iscp.core.api.feed_views import ChangePage, FeedChange, FeedRequest
from iscp.core.job.job_deaths import DEATHS_MAX, Deaths
from iscp.core.job.job_row import JobRow
from iscp.core.values.errors import (
    CursorBehind,
    ErrorCode,
    InvalidRequest,
    IscpError,
    NodeKilled,
    TableNotFound,
    Unavailable,
)
from iscp.runtime.access.place_guard import ANYWHERE, PlaceGuard
from iscp.runtime.reads.feed_service import FIRST_CURSOR_CHARS_MAX, NodeFeeds, feed_turns
from tests.fakes.admin import FakeAdmin
from tests.fakes.deaths import FakeDeaths
from tests.fakes.job_feeds import NAME, TABLE, register
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
    return admin.status(JobName(TABLE, NAME, "acme"))


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
