"""The page of a watch, over its routes: the boards that it has, what they show, and that it changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.testclient import TestClient

from iscp.app.watch_page import LEFT_OUT_ROWS, JobReads, WatchClient, WatchClients
from iscp.cluster.requests.job_views import TargetFigures
from iscp.model.api.api_requests import LeftOutRow, LeftOutRows, RegisterRequest
from iscp.model.job.iteration import NO_MAINTENANCE
from iscp.model.job.job_row import JobRow, JobState, JobStatus
from iscp.model.protocol.events import Seen
from iscp.model.protocol.messages import SourceSeen
from iscp.model.query_plan import QueryExplanation
from iscp.model.values.errors import ErrorCode, TableNotFound
from iscp.model.values.progress import RunProgress
from iscp.model.values.watermark import Watermark
from iscp.server.page.page_app import PageApp
from iscp.server.page.page_boards import BOARDS, OF_A_RUN
from iscp.server.page.page_viewers import FORM_COOKIE, HeldAnswers, Viewers
from iscp.standalone.local_run import RunOrders, failed
from iscp.standalone.local_watch import WatchedJobs
from tests.fakes.local_runs import TABLE, Local
from tests.fakes.searches import FakeSearches

JOB = {"table": TABLE, "name": "copy"}


@dataclass
class Elsewhere:
    """What of jobs is read elsewhere, and of which it was."""

    explained: list[RegisterRequest] = field(default_factory=list)
    searches: FakeSearches = field(default_factory=FakeSearches)
    progress_of: list[str] = field(default_factory=list)

    progress: RunProgress | None = None

    def reads(self) -> JobReads:
        return JobReads(
            progress=self._progress,
            maintenance=lambda job_id: NO_MAINTENANCE,
            figures=lambda row: TargetFigures({"documents": 12.0}),
            dead_letters=self._dead_letters,
            explain=self._explain,
            search=self.searches,
        )

    def _progress(self, job_id: str) -> RunProgress | None:
        self.progress_of.append(job_id)
        return self.progress

    def _dead_letters(self, row: JobRow, limit: int) -> LeftOutRows:
        assert limit == LEFT_OUT_ROWS
        return LeftOutRows((LeftOutRow({"id": 77}, "shares its key"),), "/lake/copy")

    def _explain(self, request: RegisterRequest) -> QueryExplanation:
        self.explained.append(request)
        return QueryExplanation((), notes=("kept by hand",))


class Page:
    """The page of a watch of two jobs, of which one waits for its table."""

    def __init__(self, local: Local) -> None:
        requests = local.request("copy"), local.request("late")
        requested = local.requested(*requests)
        self.clock, self.retained_s = local.clock, 0.0
        self.jobs = WatchedJobs(dict(enumerate(requested)), "run", local.clock, lambda row: self.retained_s)
        self.row = local.registrar.register(requests[0], RunOrders()).row
        self.request = requests[0]
        self.jobs.take(0, self.row)
        self.jobs.refuse(1, failed(requested[1], TableNotFound("is no table", field="table")), again=True)
        self.elsewhere = Elsewhere()
        clients = WatchClients(WatchClient(self.jobs, self.elsewhere.reads()))
        viewers = Viewers(False, (), tls=False)
        app = PageApp(clients, HeldAnswers(clients, local.clock), viewers, local.clock, "", "run", OF_A_RUN)
        options: dict[str, Any] = {"base_url": "http://127.0.0.1", "cookies": {FORM_COOKIE: "key"}}
        self.client = TestClient(app.guarded, follow_redirects=False, **options)

    def get(self, path: str, **query: str) -> str:
        answer = self.client.get(path, params=query)
        assert answer.status_code == 200
        return str(answer.text)

    def become(self, state: JobState, **status: object) -> None:
        self.jobs.take(0, self.row._replace(state=state, status_json=JobStatus(**status).to_json()))  # type: ignore[arg-type]


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page(Local())
    with made.client:
        yield made


@pytest.mark.parametrize("board", OF_A_RUN.boards, ids=lambda board: board.name)
def test_its_boards_are_pages_that_change_nothing(page: Page, board: object) -> None:
    named = JOB if board is BOARDS["job"] else {}
    text = page.get(getattr(board, "path"), **named)  # noqa: B009
    assert "A run without a cluster" in text
    assert '<form method="post"' not in text
    assert "Audit" not in text
    assert "/cluster" not in text


@pytest.mark.parametrize("path", ["/cluster", "/live/cluster"])
def test_it_has_no_boards_of_a_cluster(page: Page, path: str) -> None:
    assert page.client.get(path).status_code == 404


def test_nothing_can_be_changed_by_it(page: Page) -> None:
    page.client.get("/")
    fields = {"form_key": page.client.cookies["iscp_form"], "verb": "pause", **JOB}
    answer = page.client.post("/act", data=fields, headers={"origin": "http://127.0.0.1"})
    assert answer.status_code == 404


def test_it_is_refused_under_the_name_of_another_site(page: Page) -> None:
    assert page.client.get("/", headers={"host": "evil.example"}).status_code == 403


def test_all_jobs_are_on_the_board_of_freshness(page: Page) -> None:
    text = page.get("/")
    assert "2 of 2 targets" in text
    assert text.index(">late</a>") < text.index(">copy</a>")  # the worst first


def test_trouble_says_what_a_job_waits_for_and_how_to_go_on(page: Page) -> None:
    text = page.get("/trouble")
    assert "TABLE_NOT_FOUND" in text
    assert "--full-refresh" in text


def test_a_job_is_shown_with_what_is_read_of_its_target(page: Page) -> None:
    page.become(JobState.COMPLETED, dead_letters=1)
    text = page.get("/job", **JOB)
    assert "<dt>documents</dt><dd>12</dd>" in text
    assert "shares its key" in text
    assert page.elsewhere.progress_of == []


def test_progress_is_read_of_a_job_that_runs(page: Page) -> None:
    page.become(JobState.RUNNING)
    page.get("/job", **JOB)
    assert page.elsewhere.progress_of == [page.row.job_id]


def test_a_job_that_is_not_taken_in_has_a_board_too(page: Page) -> None:
    assert "is no table" in page.get("/job", table=TABLE, name="late")


def test_a_job_is_explained_as_files_want_it(page: Page) -> None:
    assert "kept by hand" in page.get("/explain", **JOB)
    assert page.elsewhere.explained == [page.request]


def test_what_is_wrong_is_said_in_words_of_a_run(page: Page) -> None:
    fault = "a column is gone. Have it renamed, then resume the job, or use `iscp-admin job resync`"
    page.become(JobState.ERROR, error_code=ErrorCode.INVALID_REQUEST, error_msg=fault, warning="resume the job")
    for text in (page.get("/trouble"), page.get("/job", **JOB)):
        assert "then run the job again, or use a full refresh" in text
        assert not re.search(r"resume the job|resync|iscp-admin", text)


def test_a_first_snapshot_is_shown_with_its_progress(page: Page) -> None:
    page.elsewhere.progress = RunProgress(
        "apply", 1.0, 4.0, rows_written=40, rows_total=160, rows_per_s=10.0, left_s=12.0
    )
    page.become(JobState.RUNNING, to_version=1)
    text = page.get("/builds")
    assert "25 %, 40 of 160 rows" in text
    assert "12 s" in text
    assert "Tasks" not in text


def test_a_first_snapshot_that_waits_has_no_progress(page: Page) -> None:
    page.become(JobState.PENDING)
    text = page.get("/builds")
    assert "waiting, copy" in text
    assert "<progress" not in text


def test_an_index_is_searched_and_the_version_is_said(page: Page) -> None:
    text = page.get("/search", index="/lake/index", text="<b>fox</b>")
    assert "at version 12 of the source" in text
    assert "a fox" in text
    assert "<b>fox" not in text
    ((request, account),) = page.elsewhere.searches.calls
    assert (request.text, account) == ("<b>fox</b>", "")


def test_what_no_job_of_the_run_keeps_is_not_searched(page: Page) -> None:
    text = page.get("/search", index="/etc", text="fox")
    assert "is the target of no job" in text
    assert "iscp-admin" not in text
    assert page.elsewhere.searches.calls == []


def test_retention_that_is_about_to_bite_is_trouble(page: Page) -> None:
    page.retained_s = 7_200.0
    page.jobs.take(0, page.row._replace(watermark=Watermark(1, page.clock.now_s())))
    page.clock.advance(7_000.0)
    page.jobs.hear_seen(Seen(SourceSeen(page.row.key.shard, 2, page.clock.now_s(), 6_000.0)))
    text = page.get("/trouble")
    assert "Retention about to bite" in text
    assert "behind by 100 min; the source retains 2 h" in text
