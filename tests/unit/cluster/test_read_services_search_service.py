"""Whose indexes are searched: those that the account's jobs maintain, by any spelling, and no other place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from iscp.cluster.read_services import JobSearch, owners_jobs_at
from iscp.engine.account_turns import ANYWHERE, AccountTurns, PlaceGuard, TurnBounds
from iscp.model.access.authorization import AccountRoots
from iscp.model.api.api_requests import SearchRequest
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import DEATHS_MAX, Deaths
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.values.errors import (
    ErrorCode,
    InvalidRequest,
    NodeKilled,
    NotOwner,
    TableNotFound,
    TimedOut,
    Unavailable,
)
from tests.fakes.catalog import FakeCatalog
from tests.fakes.deaths import FakeDeaths
from tests.fakes.owned_jobs import register, row
from tests.fakes.owner import OwnerWorld
from tests.fakes.searches import ANSWER, FakeIndexes

INDEX, COPY = "/targets/t-1/words", "/targets/t-1/copy"


class Searched:
    """An owner with the index `words` and the replica `copy`, both of the account `a`; `waits` is what was awaited."""

    def __init__(self, places: PlaceGuard = ANYWHERE, *, leads: bool = True) -> None:
        self.world = OwnerWorld()
        if leads:
            self.world.lead()
            spec = JobSpec(ConsumerSpec("fulltext", INDEX, ("id",)))
            register(self.world, row("words")._replace(spec_json=spec.to_json()), row("copy"))
        self.catalog, self.indexes = FakeCatalog(), FakeIndexes()
        self.waits: list[tuple[str, int, float]] = []
        self.behind = False
        turns = AccountTurns(TurnBounds(4, 2, 10.0), "search", "search", "Retry")
        self.deaths = FakeDeaths()
        jobs_at, search = owners_jobs_at(self.world.owner), self.indexes.search
        self.service = JobSearch(jobs_at, self.catalog, search, turns, places, self.deaths, self.wait)

    def wait(self, job: JobRow, version: int, timeout_s: float, alive: Callable[[], bool]) -> None:
        self.waits.append((job.job_id, version, timeout_s))
        if self.behind:
            raise TimedOut("version 9 was not applied")

    def close(self) -> None:
        self.service.close()
        self.world.close()


@pytest.fixture
def searched() -> Iterator[Searched]:
    made = Searched()
    yield made
    made.close()


def test_an_index_is_searched_by_its_account_and_by_those_of_all(searched: Searched) -> None:
    wanted = SearchRequest(INDEX, "fox", filter="year > 1990", highlight=True)
    assert searched.service.search(wanted, "a", lambda: True) == ANSWER
    assert searched.service.search(wanted, "", lambda: True) == ANSWER
    assert searched.indexes.requests == [replace(wanted, wait_s=0.0)] * 2
    assert searched.indexes.accounts == ["a", "a"]  # whose index it is, whoever searches
    assert searched.waits == []


@pytest.mark.parametrize("uri", [INDEX, f"{INDEX}/", "/link/to/words"])
def test_a_place_is_found_by_each_of_its_spellings(searched: Searched, uri: str) -> None:
    searched.catalog.links["/link/to/words"] = INDEX
    searched.service.search(SearchRequest(uri, "fox"), "a", lambda: True)
    assert [each.uri for each in searched.indexes.requests] == [INDEX]


@pytest.mark.parametrize(
    ("uri", "account"),
    [
        (INDEX, "b"),
        ("/targets/t-1/nothing", "a"),
        ("/etc", "a"),
        ("/etc", ""),
        ("s3://bucket/index", "a"),
        (COPY, "a"),
        (COPY, "b"),
        ("/targets", ""),
        (f"{INDEX}/../words", "a"),
    ],
)
def test_all_else_is_refused_alike_whether_it_is_there_or_not(searched: Searched, uri: str, account: str) -> None:
    with pytest.raises(TableNotFound) as refused:
        searched.service.search(SearchRequest(uri, "fox"), account, lambda: True)
    assert refused.value.message == f"{uri} is the target of no job that maintains an index"
    assert refused.value.field == "uri"
    assert searched.indexes.requests == []


def test_a_search_of_ones_own_writes_waits_for_the_job_and_not_for_the_index(searched: Searched) -> None:
    wanted = SearchRequest(INDEX, "fox", min_version=9, wait_s=3.0)
    assert searched.service.search(wanted, "a", lambda: True) == ANSWER
    assert searched.waits == [("id-words", 9, 3.0)]
    assert searched.indexes.requests == [replace(wanted, wait_s=0.0)]
    searched.behind = True
    with pytest.raises(TimedOut):
        searched.service.search(wanted, "a", lambda: True)
    assert len(searched.indexes.requests) == 1


def test_what_the_index_refuses_is_passed_on_unchanged(searched: Searched) -> None:
    searched.indexes.answer = InvalidRequest("has no end", field="text", remedy="Close the quote")
    with pytest.raises(InvalidRequest) as refused:
        searched.service.search(SearchRequest(INDEX, '"fox'), "a", lambda: True)
    assert refused.value is searched.indexes.answer


def test_a_link_that_leads_out_of_the_roots_since_is_not_followed() -> None:
    leads_to = {INDEX: INDEX}
    roots = AccountRoots({"a": ("/targets",)})
    places = PlaceGuard(roots, lambda place: (leads_to.get(place, place),), lambda root: root)
    searched = Searched(places)
    try:
        searched.service.search(SearchRequest(INDEX, "fox"), "a", lambda: True)
        leads_to[INDEX] = "/elsewhere"
        with pytest.raises(InvalidRequest) as refused:
            searched.service.search(SearchRequest(INDEX, "fox"), "a", lambda: True)
        assert refused.value.code is ErrorCode.OUTSIDE_ROOTS
        assert len(searched.indexes.requests) == 1
    finally:
        searched.close()


def test_a_node_that_is_not_the_owner_answers_nothing() -> None:
    searched = Searched(leads=False)
    try:
        with pytest.raises(NotOwner):
            searched.service.search(SearchRequest(INDEX, "fox"), "a", lambda: True)
    finally:
        searched.close()


def test_a_service_that_is_closed_begins_no_search(searched: Searched) -> None:
    searched.service.close()
    with pytest.raises(Unavailable):
        searched.service.search(SearchRequest(INDEX, "fox"), "a", lambda: True)


def test_an_index_whose_searches_a_node_has_died_of_is_not_searched_there_any_more(searched: Searched) -> None:
    wanted = SearchRequest(INDEX, "fox")
    assert searched.service.search(wanted, "a", lambda: True) == ANSWER
    assert (searched.deaths.begun, searched.deaths.at) == ([["id-words"]], [])
    searched.deaths.known["id-words"] = Deaths(DEATHS_MAX, 1.0, "Aborted")
    with pytest.raises(NodeKilled, match="died while it worked for the job"):
        searched.service.search(wanted, "a", lambda: True)
    assert len(searched.indexes.requests) == 1
