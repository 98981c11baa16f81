"""Answers: new enough, fetched while an old one is shown, and the last one while the cluster does not answer.

What a list of jobs takes is counted with all of its texts, and at least as much as it really takes.

In whose name the page calls: never in its node's own.

What the page refuses: names that are not its own, forms of other sites, paths that lead away.
"""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from iscp.client.channel.grpc_calls import CALLER_KEY
from iscp.model.api.api_requests import JobView
from iscp.model.values.errors import InvalidRequest, NotAuthenticated, NotAuthorized, Unavailable
from iscp.server.boards.job_board import JobFacts, facts_of
from iscp.server.page.page_viewers import (
    ANSWERS_MAX,
    FRESH_S,
    HEADERS,
    STALE_S,
    HeldAnswer,
    HeldAnswers,
    Viewer,
    bytes_of,
    metadata_of_viewer,
    new_form_key,
    own_path,
    refuse_foreign_host,
    refuse_other_origin,
)
from tests.fakes.clock import FakeClock
from tests.fakes.viewed_cluster import ViewedCluster, job_view
from tests.fakes.waiting import until

ANA, BEN = Viewer("ana"), Viewer("ben")


LONG = 1_000_000


def test_answers_take_no_more_memory_than_they_may() -> None:
    """Those that were unused for longest go; one that is too large by itself is still shown."""
    cluster, clock = ViewedCluster(), FakeClock()
    answers = HeldAnswers(cluster, clock, bytes_max=3 * LONG + LONG // 2)
    fetched = list[str]()

    def shown(what: str, chars: int = LONG) -> str:
        def fetch(client: object) -> tuple[str, ...]:
            fetched.append(what)
            return ("x" * chars,)

        return answers.newest(ANA, what, fetch).value[0]

    for what in ("a", "b", "c", "a", "d"):
        assert len(shown(what)) == LONG
    assert fetched == ["a", "b", "c", "d"]
    shown("b")  # it was unused for longest when d came, and drives out c
    shown("a")
    shown("d")
    assert fetched[4:] == ["b"]
    shown("c")
    assert fetched[5:] == ["c"]
    assert len(shown("e", 9 * LONG)) == 9 * LONG
    shown("e")
    assert fetched[6:] == ["e"]
    shown("d")
    assert fetched[7:] == ["d"]


def made(**given: object) -> tuple[ViewedCluster, FakeClock, HeldAnswers]:
    cluster, clock = ViewedCluster([job_view(1)], **given), FakeClock()  # type: ignore[arg-type]
    return cluster, clock, HeldAnswers(cluster, clock)


def jobs_of(answers: HeldAnswers, viewer: Viewer) -> HeldAnswer[Sequence[JobView]]:
    return answers.newest(viewer, "jobs", lambda client: client.jobs(limit=10))


def test_a_list_is_fetched_once_while_it_is_new() -> None:
    cluster, clock, answers = made()
    first = jobs_of(answers, ANA)
    clock.advance(FRESH_S / 2)
    assert jobs_of(answers, ANA) is first
    assert cluster.calls == ["jobs"]
    assert (len(first.value), first.fault, first.taken_at_s) == (1, "", 1_700_000_000.0)


def test_each_viewer_has_a_list_of_its_own() -> None:
    cluster, _, answers = made(tokens={"ana"})
    assert len(jobs_of(answers, ANA).value) == 1
    with pytest.raises(NotAuthenticated):
        jobs_of(answers, BEN)
    assert [each.token for each in cluster.viewers] == ["ana", "ben"]


def test_an_old_list_is_shown_while_the_next_one_is_fetched() -> None:
    cluster, clock, answers = made()
    jobs_of(answers, ANA)
    cluster.listed.append(job_view(2))
    clock.advance(FRESH_S + 1)
    assert len(jobs_of(answers, ANA).value) == 1
    until(lambda: len(jobs_of(answers, ANA).value) == 2)


def test_a_very_old_list_is_not_shown() -> None:
    cluster, clock, answers = made()
    jobs_of(answers, ANA)
    cluster.listed.append(job_view(2))
    clock.advance(STALE_S + 1)
    assert len(jobs_of(answers, ANA).value) == 2


def test_a_list_that_took_long_counts_as_new_for_longer() -> None:
    cluster, clock, answers = made()
    slow = cluster.client

    def client(viewer: Viewer) -> object:
        clock.advance(1.0)  # fetching takes a second
        return slow(viewer)

    cluster.client = client  # type: ignore[method-assign, assignment]
    first = jobs_of(answers, ANA)
    clock.advance(9.0)
    assert jobs_of(answers, ANA) is first


def test_while_the_cluster_does_not_answer_the_last_list_is_shown_with_the_reason() -> None:
    cluster, clock, answers = made()
    jobs_of(answers, ANA)
    cluster.fault = Unavailable("no owner is elected")
    clock.advance(STALE_S + 1)
    shown = jobs_of(answers, ANA)
    assert (len(shown.value), shown.fault) == (1, "no owner is elected")
    cluster.fault = None
    clock.advance(STALE_S + 1)
    assert jobs_of(answers, ANA).fault == ""


def test_without_a_former_list_the_error_is_the_answer() -> None:
    _, _, answers = made(fault=Unavailable("no owner"))
    with pytest.raises(Unavailable):
        jobs_of(answers, ANA)


def test_who_is_no_longer_known_does_not_keep_the_list() -> None:
    cluster, clock, answers = made(tokens={"ana"})
    jobs_of(answers, ANA)
    cluster.tokens = set()
    clock.advance(FRESH_S + 1)

    def refused() -> bool:
        try:
            jobs_of(answers, ANA)
        except NotAuthenticated:
            return True
        return False

    until(refused)


def test_a_change_is_seen_at_once_when_the_list_is_forgotten() -> None:
    cluster, _, answers = made()
    jobs_of(answers, ANA)
    cluster.listed.append(job_view(2))
    answers.forget(ANA)
    assert len(jobs_of(answers, ANA).value) == 2


def test_the_number_of_lists_is_bounded() -> None:
    cluster, _, answers = made()
    for number in range(ANSWERS_MAX + 1):
        jobs_of(answers, Viewer(f"t{number}"))
    jobs_of(answers, Viewer("t1"))  # is held
    assert len(cluster.calls) == ANSWERS_MAX + 1
    jobs_of(answers, Viewer("t0"))  # was dropped
    assert len(cluster.calls) == ANSWERS_MAX + 2


def test_many_who_come_at_once_make_one_call() -> None:
    cluster, _, answers = made()
    begin = threading.Barrier(8)

    def visit() -> None:
        begin.wait()
        jobs_of(answers, ANA)

    threads = [threading.Thread(target=visit) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert cluster.calls == ["jobs"]


def test_after_the_close_the_last_list_is_still_shown() -> None:
    _, clock, answers = made()
    first = jobs_of(answers, ANA)
    answers.close()
    clock.advance(FRESH_S + 1)
    assert jobs_of(answers, ANA) is first


@dataclass(frozen=True, slots=True)
class Single:
    text: str


def listed(jobs: int) -> tuple[JobFacts, ...]:
    return tuple(
        facts_of(replace(job_view(number), spec_json=json.dumps({"iteration": {"consumer": {"kind": f"k{number}"}}})))
        for number in range(jobs)
    )


def test_a_list_of_jobs_is_counted_at_least_as_large_as_it_is() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        jobs = listed(500)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.7 * (after - before) < bytes_of(jobs) < 4 * (after - before)


def test_no_part_is_large_and_not_counted() -> None:
    long = "x" * 1_000_000
    for value in (long, [long], ({"a": (1, [long])},), {long: 1}, Single(long), frozenset({long}), [[Single(long)]]):
        assert 1_000_000 < bytes_of(value) < 1_010_000


PEER = "ipv4:10.0.0.9:5"


def test_over_tls_each_call_says_for_whom_it_is_made() -> None:
    """The channel shows the node's certificate: a call that says nothing would have a node's rights."""
    for viewer in (Viewer(peer=PEER), Viewer("token", peer=PEER), Viewer("", frozenset({"ben", "ana"}), PEER)):
        said = [value for key, value in metadata_of_viewer(viewer, said=True) if key == CALLER_KEY]
        assert [json.loads(each) for each in said] == [{"names": sorted(viewer.names), "peer": PEER}]


def test_a_token_goes_along_and_without_tls_nothing_else() -> None:
    assert metadata_of_viewer(Viewer("token", peer=PEER), said=False) == (("authorization", "Bearer token"),)
    assert metadata_of_viewer(Viewer(peer=PEER), said=False) == ()


def test_viewers_differ_by_what_they_show_and_not_by_where_they_are() -> None:
    scopes = {
        Viewer("a").scope,
        Viewer("b").scope,
        Viewer("", frozenset({"a"})).scope,
        Viewer("a", frozenset({"a"})).scope,
        Viewer("", frozenset({"a", "b"})).scope,
    }
    assert len(scopes) == 5
    assert Viewer("a", peer=PEER).scope == Viewer("a").scope
    assert "token" not in Viewer("token").scope


HOST = "lake.example:7432"
OWN = {"host": HOST, "origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7432", "localhost", "LOCALHOST:1", "a.localhost", "[::1]:7432", "10.0.0.1", "Lake.Example:80"]
)
def test_addresses_and_known_names_are_the_pages(host: str) -> None:
    refuse_foreign_host(host, {"lake.example"})


@pytest.mark.parametrize("host", ["", "evil.example", "lake.example.evil", "127.0.0.1.evil", "[", "localhost.evil:1"])
def test_a_name_that_another_site_may_give_this_address_is_refused(host: str) -> None:
    with pytest.raises(NotAuthorized) as caught:
        refuse_foreign_host(host, {"lake.example"})
    assert "page.hosts" in caught.value.remedy


def test_a_form_of_this_page_is_taken() -> None:
    key = new_form_key()
    refuse_other_origin(OWN, key, key)
    refuse_other_origin({"host": HOST, "origin": f"https://{HOST}".upper()}, key, key)
    refuse_other_origin({"host": HOST, "sec-fetch-site": "same-origin"}, key, key)


@pytest.mark.parametrize(
    ("changes", "given", "words"),
    [
        ({"sec-fetch-site": "cross-site"}, "k", "another site"),
        ({"sec-fetch-site": "same-site"}, "k", "another site"),
        ({"origin": "http://evil.example"}, "k", "another origin"),
        ({"origin": "null"}, "k", "another origin"),
        ({"origin": "http://["}, "k", "another origin"),
        ({"origin": "", "sec-fetch-site": ""}, "k", "does not say"),
        ({}, "", "no longer valid"),
        ({}, "ä", "no longer valid"),
    ],
)
def test_a_form_of_another_site_is_refused(changes: dict[str, str], given: str, words: str) -> None:
    with pytest.raises(NotAuthorized) as caught:
        refuse_other_origin({**OWN, **changes}, given, "k")
    assert words in str(caught.value)


def test_without_a_cookie_no_form_is_taken() -> None:
    with pytest.raises(NotAuthorized):
        refuse_other_origin(OWN, "", "")


@pytest.mark.parametrize("path", ["//evil.example", "http://evil.example", "", "job", "/\\evil", "/a b", "/a\nb", "/é"])
def test_a_login_leads_nowhere_else(path: str) -> None:
    with pytest.raises(InvalidRequest):
        own_path(path)


def test_a_login_leads_back_to_a_board() -> None:
    assert own_path("/job?table=%2Flake%2Ft&name=copy") == "/job?table=%2Flake%2Ft&name=copy"


def test_browsers_run_no_script_but_the_pages_file() -> None:
    policy = dict(each.strip().split(" ", 1) for each in HEADERS["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'"
