"""The page's routes: boards, logins, actions, what is hostile, and what goes wrong.

Live streams: what is sent, how many there are, and their end.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from starlette.testclient import TestClient

from iscp.index.model.highlighting import HighlightOptions, TokenSpan, highlight
from iscp.model.api.api_requests import JobView, LeftOutRow, LeftOutRows, SearchAnswer, SearchHit
from iscp.model.job.job_row import JobState, JobStatus, Reason
from iscp.model.query_plan import ChangeCost, ExplainedOperator, OperatorUpkeep, QueryExplanation
from iscp.model.values.errors import InvalidRequest, InvariantBroken, NotAuthorized, QueueFull, TimedOut, Unavailable
from iscp.server.page.page_app import FORM_BYTES_MAX, STREAMS_MAX, STREAMS_PER_VIEWER_MAX, LiveStreams, PageApp, event
from iscp.server.page.page_boards import BOARDS
from iscp.server.page.page_viewers import COOKIE_CHARS_MAX, FORM_COOKIE, HEADERS, TOKEN_COOKIE, HeldAnswers, Viewers
from tests.fakes.clock import FakeClock
from tests.fakes.viewed_cluster import NOW_S, ViewedCluster, history_entry, job_view

STEERING = "\x1b[31m\x9b1m\u202e\u2066\u200b\u2028\ufeff\x07\x85"
HOSTILE = f"<script>alert(1)</script>\"'><img src=x onerror=alert(1)>{{{{7*7}}}}{STEERING}"
ORIGIN = {"origin": "http://127.0.0.1", "sec-fetch-site": "same-origin"}
JOB = {"table": "id-0", "name": "copy0", "account": "acme"}


def browser(cluster: ViewedCluster, authentication: bool = False, **given: Any) -> TestClient:
    clock = FakeClock(NOW_S)
    viewers = Viewers(authentication, ("lake.example",), tls=False)
    app = PageApp(cluster, HeldAnswers(cluster, clock), viewers, clock, "demo", "iscp-0")
    options: dict[str, Any] = {"base_url": "http://127.0.0.1", "headers": {"accept": "text/html"}, **given}
    return TestClient(app.guarded, follow_redirects=False, **{"cookies": {FORM_COOKIE: "a" * 43}, **options})


def hostile_job() -> JobView:
    options = {"sql": HOSTILE, "tables": {HOSTILE: HOSTILE}}
    spec = {"iteration": {"consumer": {"kind": "view", "target": f"/lake/{HOSTILE}", "options": options}}}
    status = JobStatus(error_code=10_004, error_msg=HOSTILE, warning=HOSTILE, dead_letters=3)
    named = {"account": HOSTILE, "table": HOSTILE, "name": "copy0", "node_id": HOSTILE}
    return replace(job_view(0, spec, status=status, state=JobState.ERROR, **named), figures={HOSTILE: 1.0})


def form_key(client: TestClient, path: str = "/cluster") -> str:
    client.get(path)
    return client.cookies[FORM_COOKIE]


def post(client: TestClient, path: str, fields: dict[str, str], key: str | None = None, **headers: str) -> Any:
    given = {"form_key": form_key(client) if key is None else key, **fields}
    return client.post(path, data=given, headers={**ORIGIN, **headers})


@pytest.mark.parametrize("board", BOARDS.values(), ids=lambda board: board.name)
def test_every_board_is_a_page(board: Any) -> None:
    cluster = ViewedCluster([job_view(0)], {"copy0": [history_entry(parts_s={"read": 1.0})]})
    with browser(cluster) as client:
        answer = client.get(board.path, params=JOB if board.name == "job" else {})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)
    assert f"<title>{board.title} · demo</title>" in answer.text
    assert answer.text.count("<h1>") == 1
    ids = re.findall(r' id="([^"]*)"', answer.text)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    ("path", "status"), [("/cluster/", 307), ("/login", 200), ("/nothing", 404), ("/assets/page.css", 200)]
)
def test_every_answer_has_the_headers_that_guard_it(path: str, status: int) -> None:
    """The redirect of an address with a slash too many is the framework's own."""
    with browser(ViewedCluster()) as client:
        answer = client.get(path)
    assert answer.status_code == status
    own = {"cache-control"} if "assets" in path else set()
    assert {name: answer.headers[name] for name in HEADERS if name not in own} == {
        name: value for name, value in HEADERS.items() if name not in own
    }


def test_the_freshness_board_shows_lag_against_target_lag() -> None:
    cluster = ViewedCluster([job_view(1), job_view(0, lag_s=300.0, late=True)])
    with browser(cluster) as client:
        text = client.get("/").text
        assert text.index("c0</a>") < text.index("c1</a>")  # the worst first
        assert "<td>5 min</td>" in text
        assert '<span class="tag late">late</span>' in text
        assert "c1</a>" not in client.get("/", params={"condition": "late"}).text
        assert "No target matches" in client.get("/", params={"words": "nothing"}).text
    with browser(ViewedCluster()) as client:
        assert "There are no jobs yet" in client.get("/").text


@pytest.mark.parametrize("path", [*(board.path for board in BOARDS.values()), "/explain"])
def test_no_script_of_a_tenant_runs(path: str) -> None:
    """Nothing that a tenant writes becomes an element, an attribute or a template."""
    entry = history_entry(error_code=9, error_msg=HOSTILE, reason=HOSTILE, data_type=HOSTILE, node_id=HOSTILE)
    operator = ExplainedOperator(
        99, HOSTILE, OperatorUpkeep.WHOLE, HOSTILE, HOSTILE, HOSTILE, (ChangeCost(HOSTILE, 1, 1),)
    )
    cluster = ViewedCluster(
        [hostile_job()], {"copy0": [entry]}, explanation=QueryExplanation((operator,), notes=(HOSTILE,))
    )
    with browser(cluster) as client:
        parameters = {"table": HOSTILE, "name": "copy0", "account": HOSTILE, "words": HOSTILE, "done": HOSTILE}
        answer = client.get(path, params=parameters if path != "/" else {"account": HOSTILE})
        answers = [answer.text, client.get(path, params={**JOB, "table": HOSTILE}).text]
    for text in answers:
        assert not [each for each in text if not each.isprintable() and each != "\n"], "shown as it is"
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert 'onerror=alert(1)>"' not in text
        assert "49" not in re.sub(r"\d{3,}", "", text).replace("149", "")
        assert re.findall(r"<script[^>]*>", text) == re.findall(r'<script src="/assets/live\.js\?\w+" defer>', text)
        assert " style=" not in text
        assert " onclick" not in text


def test_what_is_shown_has_escapes_and_a_field_comes_back_as_it_was() -> None:
    cluster = ViewedCluster([hostile_job()])
    with browser(cluster) as client:
        text = client.get("/job", params={**JOB, "account": HOSTILE}).text
        typed = client.get("/search", params={"index": "/lake/i", "text": "زمان\u200cها"}).text
    assert "\\u202e\\u2066\\u200b\\u2028" in text
    (account, *_) = [unescape(each) for each in re.findall(r'name="account" value="([^"]*)"', text)]
    # Controls have no reference in HTML that Python reads.
    plain = [each for each in HOSTILE if each not in "\x1b\x9b\x07\x85"]
    assert [each for each in account if each not in "\u203a\u2026"] == plain
    assert 'value="زمان&#8204;ها"' in typed


def test_no_row_marks_itself() -> None:
    written = "a <em>late</em> flight"
    at = written.index("flight")
    fragment = highlight(written, [TokenSpan(at, len(written), "x")], {"x"}, HighlightOptions(html=True))
    hit = SearchHit({"id": 7}, 1.5, {}, {"text": fragment})
    with browser(ViewedCluster([job_view(0)], found=SearchAnswer((hit,), 42, NOW_S, 9))) as client:
        text = client.get("/search", params={"index": "/lake/index", "text": "x"}).text
    assert re.findall("<mark>(.*?)</mark>", text) == ["flight"]
    assert "&lt;em&gt;late&lt;/em&gt;" in text


@pytest.mark.parametrize("path", [board.path for board in BOARDS.values()])
def test_texts_without_bytes_and_numbers_without_end_hide_no_board(path: str) -> None:
    """JSON can hold half of a surrogate pair, and a number that no float can."""
    consumer = (
        '{"kind": "search", "target": "/lake/\\ud800", "options": {"sql": "\\ud800", "tables": {"t": "\\udfff"}}}'
    )
    spec = f'{{"iteration": {{"consumer": {consumer}}}, "target_lag": 1{"0" * 400}}}'
    hit = SearchHit({"id": "\ud800"}, 1.0, {"note": "\udfff"}, {})
    damaged = replace(job_view(0), spec_json=spec)
    cluster = ViewedCluster([damaged, job_view(1)], found=SearchAnswer((hit,), 1, NOW_S, 1))
    with browser(cluster, raise_server_exceptions=False) as client:
        searched = {"index": "/lake/index", "text": "words"} if path == "/search" else {}
        assert client.get(path, params=JOB if path == "/job" else searched).status_code == 200


def test_a_job_says_why_it_waits_and_what_is_wrong() -> None:
    status = JobStatus(error_code=10_004, error_msg="key 5 is there twice")
    entry = history_entry(parts_s={"wait": 1.0, "read": 2.0})
    cluster = ViewedCluster([job_view(0, state=JobState.ERROR, status=status)], {"copy0": [entry]})
    with browser(cluster) as client:
        text = client.get("/job", params=JOB).text
    assert "waits for somebody" in text
    assert "key 5 is there twice" in text
    assert 'aria-label="wait 1.0 s, read 2.0 s"' in text
    assert ">Retry</button>" in text


def test_the_time_line_has_earlier_iterations_and_is_whole_without_them() -> None:
    status = JobStatus(start_at_s=NOW_S - 6, end_at_s=NOW_S - 5)
    entries = [history_entry(start_at_s=NOW_S - 40, end_at_s=NOW_S - 30, node_id="iscp-7")]
    cluster = ViewedCluster([job_view(0, status=status)], {"copy0": entries})
    with browser(cluster) as client:
        texts = [client.get("/timeline").text for _ in range(2)]
        assert all("Iterations of iscp-7" in text and "Iterations of iscp-0" in text for text in texts)
        assert cluster.calls.count("history") == 1
    failing = ViewedCluster([job_view(0, status=status)], refused={"history": TimedOut("it took too long")})
    with browser(failing) as client:
        text = client.get("/timeline").text
    assert "it took too long" in text
    assert "Iterations of iscp-0" in text


def test_rows_that_a_job_leaves_out_are_shown_and_held() -> None:
    letters = LeftOutRows((LeftOutRow({"id": HOSTILE, HOSTILE: 7}, "other rows have the same id"),), "/lake/letters")
    cluster = ViewedCluster([job_view(0, status=JobStatus(dead_letters=2)), job_view(1)], left_out=letters)
    with browser(cluster) as client:
        texts = [client.get("/job", params=JOB).text for _ in range(3)]
        assert "left out</h2>" not in client.get("/job", params={**JOB, "table": "id-1", "name": "copy1"}).text
    for text in texts:
        assert "1 of the rows in /lake/letters" in text
        assert "other rows have the same id" in text
        assert "<script>alert" not in text
    assert cluster.calls.count("dead-letters") == 1


def test_without_the_rows_left_out_the_rest_of_a_job_is_shown() -> None:
    cluster = ViewedCluster(
        [job_view(0, status=JobStatus(dead_letters=2))], refused={"dead-letters": TimedOut("it took too long")}
    )
    with browser(cluster) as client:
        answer = client.get("/job", params=JOB)
    assert answer.status_code == 200
    assert "it took too long" in answer.text


def test_without_its_history_the_rest_of_a_job_is_shown() -> None:
    cluster = ViewedCluster([job_view(0)], refused={"history": TimedOut("it took too long")})
    with browser(cluster) as client:
        answer = client.get("/job", params=JOB)
    assert answer.status_code == 200
    assert "it took too long" in answer.text


def test_who_may_not_see_the_cluster_or_the_audit_is_led_on() -> None:
    refused = {name: NotAuthorized("your role does not allow it") for name in ("cluster", "audit", "events")}
    with browser(ViewedCluster([job_view(0)], refused=refused)) as client:
        answer = client.get("/cluster")
        assert answer.status_code == 403
        assert "for those who act for all accounts" in answer.text
        trouble = client.get("/trouble")
        assert trouble.status_code == 200
        assert "Only an admin of an account" in trouble.text


@pytest.mark.parametrize(
    ("path", "fault", "status", "words"),
    [
        ("/", Unavailable("no owner is elected", remedy="Wait"), 503, "does not answer now"),
        ("/cluster", TimedOut("it took too long"), 504, "did not answer in time"),
        ("/job?table=id-0&name=nobody", None, 404, "There is no such job"),
        ("/job", None, 400, "table is missing"),
        ("/job?table=x&name=" + "n" * 5000, None, 400, "too long"),
        ("/?" + "a" * 40_000, None, 400, "too long"),
        ("/?" + "a=1&" * 60, None, 400, "too many fields"),
        ("/nowhere", None, 404, "no such page"),
        ("/assets/nothing.js", None, 404, "no such file"),
        ("/assets/..%2fpage_app.py", None, 404, "no such"),
        ("/act", None, 405, "no such page"),
    ],
)
def test_what_goes_wrong_is_said(path: str, fault: Exception | None, status: int, words: str) -> None:
    with browser(ViewedCluster([job_view(0)], fault=fault)) as client:
        answer = client.get(path)
    assert answer.status_code == status
    assert words in answer.text
    assert answer.headers["content-security-policy"] == HEADERS["content-security-policy"]


def test_what_is_not_foreseen_ends_one_request_alone() -> None:
    cluster = ViewedCluster([job_view(0)], refused={"cluster": InvariantBroken("?"), "status": ZeroDivisionError()})
    with browser(cluster, raise_server_exceptions=False) as client:
        assert client.get("/cluster").status_code == 500
        answer = client.get("/job", params=JOB)
        assert answer.status_code == 500
        assert "unforeseen ZeroDivisionError" in answer.text
        assert client.get("/").status_code == 200


def test_a_foreign_name_of_the_page_is_refused() -> None:
    """Another site may give its name this machine's address; then it could read the page as its own."""
    cluster = ViewedCluster([job_view(0)])
    with browser(cluster, base_url="http://evil.example") as client:
        assert client.get("/").status_code == 403
        assert client.get("/live/freshness").status_code == 403
    with browser(cluster, base_url="http://lake.example:7432") as client:
        assert client.get("/").status_code == 200
    assert cluster.calls == ["jobs"]


# --- logins ----------------------------------------------------------------------------------------------------------


def test_who_is_not_known_logs_in_and_comes_back() -> None:
    cluster = ViewedCluster([job_view(0)], tokens={"good"})
    with browser(cluster, authentication=True) as client:
        led = client.get("/job", params=JOB)
        assert led.status_code == 303
        assert led.headers["location"].startswith("/login?next=%2Fjob%3Ftable%3Did-0")
        assert cluster.calls == []
        key = form_key(client, "/login")
        wrong = post(client, "/login", {"token": "bad", "next": "/trouble"}, key)
        assert wrong.status_code == 401
        assert TOKEN_COOKIE not in client.cookies
        right = post(client, "/login", {"token": " good ", "next": "/trouble"}, key)
        assert (right.status_code, right.headers["location"]) == (303, "/trouble")
        cookie = right.headers["set-cookie"]
        assert all(each in cookie for each in ("iscp_token=good", "HttpOnly", "SameSite=strict", "Path=/", "Max-Age="))
        assert client.get("/job", params=JOB).status_code == 200
        assert cluster.viewers[-1].token == "good"
        out = post(client, "/logout", {}, key)
        assert out.headers["location"] == "/login"
        assert TOKEN_COOKIE not in client.cookies


@pytest.mark.parametrize("token", ["", "a b", "é", "x" * (COOKIE_CHARS_MAX + 1), "a;b", "a\nb"])
def test_what_is_no_token_is_not_held(token: str) -> None:
    cluster = ViewedCluster(tokens={token})
    with browser(cluster, authentication=True) as client:
        answer = post(client, "/login", {"token": token}, form_key(client, "/login"))
    assert answer.status_code == 401
    assert cluster.calls == []


def test_a_login_leads_to_no_other_site() -> None:
    with browser(ViewedCluster(tokens={"good"}), authentication=True) as client:
        answer = post(client, "/login", {"token": "good", "next": "//evil.example"}, form_key(client, "/login"))
    assert answer.status_code == 400


def test_a_cookie_that_is_nonsense_is_none() -> None:
    with browser(ViewedCluster(tokens={"good"}), authentication=True) as client:
        client.cookies.set(TOKEN_COOKIE, '"a b"')
        assert client.get("/").status_code == 303


def test_a_script_that_is_not_known_is_refused_without_a_login() -> None:
    with browser(ViewedCluster(tokens={"good"}), authentication=True) as client:
        assert client.get("/live/freshness", headers={"accept": "text/event-stream"}).status_code == 401


def test_behind_tls_cookies_never_go_without_it() -> None:
    clock, cluster = FakeClock(), ViewedCluster(tokens={"good"})
    app = PageApp(cluster, HeldAnswers(cluster, clock), Viewers(True, (), tls=True), clock, "", "n")
    with TestClient(app.guarded, base_url="https://127.0.0.1", follow_redirects=False) as client:
        answer = client.get("/login")
    assert "Secure" in answer.headers["set-cookie"]


# --- actions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "call"), [("pause", "pause"), ("resume", "resume"), ("retry", "resume"), ("resync", "resync")]
)
def test_a_job_is_changed_and_its_board_says_so(verb: str, call: str) -> None:
    cluster = ViewedCluster([job_view(0)])
    with browser(cluster) as client:
        answer = post(client, "/act", {"verb": verb, **JOB})
        assert answer.status_code == 303
        assert cluster.done == [(call, "id-0", "copy0", "acme")]
        shown = client.get(answer.headers["location"]).text
    assert 'role="status">The job' in shown


def test_what_was_so_already_is_said() -> None:
    with browser(ViewedCluster([job_view(0)], changed=False)) as client:
        answer = post(client, "/act", {"verb": "pause", **JOB})
        assert "nothing has changed" in client.get(answer.headers["location"]).text


@pytest.mark.parametrize("verb", ["drain", "uncordon"])
def test_a_node_is_drained_and_taken_back(verb: str) -> None:
    cluster = ViewedCluster()
    with browser(cluster) as client:
        answer = post(client, "/act", {"verb": verb, "node_id": "iscp-1"})
    assert answer.headers["location"] == f"/cluster?done={verb}"
    assert cluster.done == [(verb, "iscp-1")]


def test_who_may_not_is_refused_by_the_cluster_in_words() -> None:
    refused = {"pause": NotAuthorized("a viewer may not call Pause", remedy="An editor may")}
    with browser(ViewedCluster([job_view(0)], refused=refused)) as client:
        answer = post(client, "/act", {"verb": "pause", **JOB})
    assert answer.status_code == 403
    assert "a viewer may not call Pause" in answer.text


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"verb": "unregister", **JOB}, 400),
        ({"verb": "", **JOB}, 400),
        ({"verb": "pause"}, 400),
        ({"verb": "drain"}, 400),
        ({"verb": "drain", "node_id": "n" * 5000}, 400),
        ({"verb": "x" * FORM_BYTES_MAX}, 400),
    ],
)
def test_nonsense_changes_nothing(fields: dict[str, str], status: int) -> None:
    cluster = ViewedCluster([job_view(0)])
    with browser(cluster) as client:
        assert post(client, "/act", fields).status_code == status
    assert cluster.done == []


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}])
@pytest.mark.parametrize("path", ["/act", "/logout", "/login"])
def test_forms_of_other_sites_do_nothing(path: str, headers: dict[str, str]) -> None:
    cluster = ViewedCluster([job_view(0)], tokens=None)
    with browser(cluster) as client:
        answer = post(client, path, {"verb": "pause", "token": "good", **JOB}, **headers)
        assert answer.status_code == 403
        assert post(client, path, {"verb": "pause", **JOB}, key="guessed").status_code == 403
    assert cluster.done == []


@pytest.mark.parametrize("site", ["cross-site", "same-site", "", "none"])
@pytest.mark.parametrize("path", ["/search", "/explain", "/live/freshness", "/spark.svg"])
def test_a_link_of_another_site_costs_no_work(path: str, site: str) -> None:
    """Where a browser does not say from which site it comes, it has no cookie for another's."""
    cluster = ViewedCluster([job_view(0)], found=SearchAnswer((), 1, NOW_S, 1))
    query = {"index": "/lake/index", "text": "words"} if path == "/search" else JOB
    cookies = {FORM_COOKIE: "a" * 43} if site in ("cross-site", "same-site") else {}
    headers = {"accept": "text/html", **({"sec-fetch-site": site} if site else {})}
    with browser(cluster, cookies=cookies, headers=headers) as client:
        answer = client.get(path, params=query)
    if path == "/search":
        assert "press Search to make it" in answer.text
        assert 'value="words"' in answer.text
    else:
        assert answer.status_code == 403
    assert cluster.searched == []


def test_an_index_is_searched_in_the_account_of_its_job() -> None:
    spec = {"iteration": {"consumer": {"kind": "search", "target": "/lake/index"}}}
    hit = SearchHit({"id": 7}, 1.5, {"note": [1, None]}, {"text": ("a <em>late</em> &lt;b&gt;flight&lt;/b&gt;",)})
    cluster = ViewedCluster([job_view(0, spec)], found=SearchAnswer((hit,), 42, NOW_S - 4, 9, took_ms=3.0))
    with browser(cluster) as client:
        assert "/lake/index" in client.get("/search").text
        text = client.get("/search", params={"index": "/lake/index", "text": " late "}).text
        cluster.refused = {"search": InvalidRequest("has no field day", field="text")}
        refused = client.get("/search", params={"index": "/lake/index", "text": "day:1"}).text
        assert "data-live" not in text  # a search is repeated by nobody
        assert client.get("/live/search").status_code == 404
    assert cluster.searched == [("/lake/index", "late", "acme")]
    assert "a <mark>late</mark> &lt;b&gt;flight&lt;/b&gt;" in text
    assert "at version 42 of the source, committed 4.0 s ago" in text
    assert "text has no field day" in refused
    assert 'value="day:1"' in refused


def test_a_lineage_of_ten_thousand_is_a_choice() -> None:
    with browser(ViewedCluster([job_view(number) for number in range(10_000)])) as client:
        answer = client.get("/lineage")
        assert "20,000 tables are too many for one drawing" in answer.text
        assert len(answer.content) < 100_000
        assert "There is no such table" in client.get("/lineage", params={"place": "/none"}).text


# --- what is live, and what is drawn ---------------------------------------------------------------------------------


def test_a_sparkline_is_held_by_the_browser_until_there_is_a_next_iteration() -> None:
    cluster = ViewedCluster([job_view(0)], {"copy0": [history_entry()]})
    with browser(cluster) as client:
        text = client.get("/").text
        (address,) = re.findall(r'src="(/spark\.svg[^"]*)"', text)
        assert address.endswith("&amp;seq=4")
        answer = client.get(address.replace("&amp;", "&"))
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.headers["cache-control"] == "private, max-age=3600"
    assert answer.headers["vary"] == "cookie"  # who logs in next in this browser does not see it
    assert "<rect" in answer.text


def test_assets_are_addressed_by_their_content() -> None:
    with browser(ViewedCluster()) as client:
        text = client.get("/").text
        (script,) = re.findall(r'src="(/assets/live\.js\?\w{12})"', text)
        answer = client.get(script)
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"].startswith("public, max-age=")


def test_an_explanation_is_a_tree() -> None:
    operators = (
        ExplainedOperator(0, "sum by name", OperatorUpkeep.STATE, state="one row for each group"),
        ExplainedOperator(1, "orders", OperatorUpkeep.LINEAR, costs=(ChangeCost("orders", 1000, 0),)),
    )
    with browser(ViewedCluster(explanation=QueryExplanation(operators))) as client:
        text = client.get("/explain", params=JOB).text
    assert 'class="depth0"' in text
    assert "1,000 changed rows of orders: 1,000 come here, 0 are read" in text


def test_more_jobs_than_are_listed_are_counted() -> None:
    cluster = ViewedCluster([job_view(0, reason=Reason.PAUSED)])
    with browser(cluster) as client:
        assert "are shown here" not in client.get("/").text


def test_an_event_is_one_line_whatever_it_holds() -> None:
    text = event("board", "a\n\nevent: forged\ndata: x\r\u2028")
    assert text.count("\n") == 3
    assert json.loads(text.splitlines()[1].removeprefix("data: ")) == "a\n\nevent: forged\ndata: x\r\u2028"


def test_what_has_not_changed_is_not_sent_again() -> None:
    contents: Iterator[str] = iter(["one", "one", "two"])

    async def run() -> list[str]:
        streams = LiveStreams()
        found: list[str] = []

        async def content() -> str:
            try:
                return next(contents)
            finally:
                if len(found) >= 2:
                    streams.end_all()

        async for each in streams.events(content):
            found.append(each)
        return found

    # It ends at the pause after the second content, which is cut short.
    assert asyncio.run(run()) == ["retry: 3000\n\n", event("board", "one"), ": the same\n\n"]


def test_places_are_bounded_for_each_viewer_and_in_all_and_are_given_back() -> None:
    async def run() -> None:
        streams = LiveStreams()
        held = [streams.place("ana") for _ in range(STREAMS_PER_VIEWER_MAX)]
        for each in held:
            each.__enter__()
        with pytest.raises(QueueFull):
            streams.refuse_beyond("ana")
        others = [streams.place(f"v{number}") for number in range(STREAMS_MAX - STREAMS_PER_VIEWER_MAX)]
        for each in others:
            each.__enter__()
        with pytest.raises(QueueFull):
            streams.refuse_beyond("one more")
        for each in (*held, *others):
            each.__exit__(None, None, None)
        assert streams.count == 0
        streams.refuse_beyond("ana")

    asyncio.run(run())
