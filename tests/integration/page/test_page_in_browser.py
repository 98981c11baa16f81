"""The page in headless Chromium: accessible, narrow, dark, by keyboard, live, and without a script of a tenant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from iscp.model.job.job_row import JobState, JobStatus
from iscp.server.page.page_boards import BOARDS, OF_A_RUN
from iscp.server.page.page_server import PageServer
from tests.fakes.busy_cluster import busy_cluster
from tests.fakes.clock import FakeClock
from tests.fakes.served_page import page_of
from tests.fakes.viewed_cluster import NOW_S, ViewedCluster, job_view
from tests.selection import in_full

pytestmark = pytest.mark.full  # tests/unit/server/page/test_page_app.py runs each time

PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
PATHS = {board.name: board.path for board in BOARDS.values() if board.listed} | {
    "job": "/job?table=id-1&name=copy1&account=acme",
    "failed": "/job?table=id-5&name=copy5&account=acme",
    "left out": "/job?table=id-9&name=copy9&account=acme",
    "explain": "/explain?table=id-1&name=copy1",
    "found": "/search?index=/lake/indexes/payments_3&text=late",
    "one lineage": "/lineage?place=/lake/views/by_carrier_1",
    "nothing": "/nothing",
    "login": "/login",
}


@pytest.fixture(scope="module")
def page() -> Iterator[PageServer]:
    with page_of(busy_cluster(), FakeClock(NOW_S)) as made:
        yield made


def opened(chromium: Browser, page: PageServer, path: str, **how: Any) -> Page:
    tab = chromium.new_context(**how).new_page()
    tab.goto(f"http://{page.address}/")  # what costs work is done for pages of this origin alone
    tab.goto(f"http://{page.address}{path}")
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
@pytest.mark.parametrize("name", PATHS)
def test_axe_finds_no_violation(
    chromium: Browser, page: PageServer, name: str, size: dict[str, int], scheme: str
) -> None:
    tab = opened(chromium, page, PATHS[name], viewport=size, color_scheme=scheme)
    results = Axe().run(tab)
    assert results.violations_count == 0, results.generate_report()
    tab.context.close()


@pytest.mark.parametrize("name", PATHS)
def test_nothing_is_wider_than_a_phone(chromium: Browser, page: PageServer, name: str) -> None:
    tab = opened(chromium, page, PATHS[name], viewport=PHONE)
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    tab.context.close()


@pytest.mark.parametrize(
    "name", ["freshness", "lineage", "timeline", "builds", "trouble", "search", "found", "job", "failed"]
)
def test_the_page_of_a_run_is_accessible_and_as_narrow(chromium: Browser, name: str) -> None:
    with page_of(busy_cluster(), FakeClock(NOW_S), offer=OF_A_RUN) as page:
        tab = opened(chromium, page, PATHS[name], viewport=PHONE)
        results = Axe().run(tab)
        assert results.violations_count == 0, results.generate_report()
        assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        tab.context.close()


def test_names_of_one_long_word_are_no_wider_than_a_phone(chromium: Browser) -> None:
    word = "x" * 400
    status = JobStatus(error_code=10_004, error_msg=word)
    cluster = ViewedCluster(
        [job_view(0, table=f"/{word}", name=word, account=word, state=JobState.ERROR, status=status)]
    )
    with page_of(cluster, FakeClock(NOW_S)) as page:
        for path in ("/", "/trouble", f"/job?table=id-0&name={word}"):
            tab = opened(chromium, page, path, viewport=PHONE)
            assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            tab.context.close()


@pytest.mark.parametrize("scheme", in_full(["dark", "light"]))
def test_it_is_as_dark_as_the_browser_wants(chromium: Browser, page: PageServer, scheme: str) -> None:
    tab = opened(chromium, page, "/", color_scheme=scheme)
    red = int(tab.evaluate("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(",")[0])
    assert (red < 64) == (scheme == "dark")
    tab.context.close()


def test_by_keyboard_from_the_first_key_to_a_job(chromium: Browser, page: PageServer) -> None:
    tab = opened(chromium, page, "/", viewport=DESK)
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    for _ in range(60):
        tab.keyboard.press("Tab")
        if tab.evaluate("document.activeElement.id").startswith("job-"):
            break
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    tab.keyboard.press("Enter")
    tab.wait_for_url("**/job?**")
    assert tab.locator("h1").count() == 1
    tab.context.close()


def test_a_board_is_live_and_keeps_what_has_the_focus(chromium: Browser) -> None:
    cluster = ViewedCluster([job_view(0), job_view(1)])
    with page_of(cluster) as page:
        tab = opened(chromium, page, "/")
        tab.wait_for_selector("#live-state:text-is('live')")
        first = f"job-{cluster.listed[0].job_id}"
        tab.focus(f"#{first}")
        cluster.listed.append(job_view(2, lag_s=500.0, late=True))
        tab.wait_for_selector("text=c2")
        assert tab.evaluate("document.activeElement.id") == first
        tab.context.close()


def test_without_scripts_it_is_whole(chromium: Browser, page: PageServer) -> None:
    tab = opened(chromium, page, "/", java_script_enabled=False)
    assert tab.locator("tbody tr").count() == 24
    tab.select_option("select[name=condition]", "late")
    tab.click("text=Filter")
    assert tab.locator("tbody tr").count() > 0
    assert set(tab.locator("tbody .tag").all_inner_texts()) == {"late"}
    tab.context.close()


def test_no_script_of_a_tenant_runs(chromium: Browser) -> None:
    hostile = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    status = JobStatus(error_code=10_004, error_msg=hostile)
    spec = {"iteration": {"consumer": {"kind": hostile, "target": f"/lake/{hostile}"}}}
    cluster = ViewedCluster([job_view(0, spec, name=hostile, state=JobState.ERROR, status=status)])
    said: list[str] = []
    with page_of(cluster) as page:
        tab = chromium.new_context().new_page()
        tab.on("console", lambda message: said.append(message.text))
        for path in ("/", "/trouble"):
            tab.goto(f"http://{page.address}{path}")
            tab.wait_for_selector("#live-state:text-is('live')")  # drawn by events too
            tab.wait_for_timeout(500)
            assert "taken" not in tab.title()
        tab.goto(f"http://{page.address}/")
        tab.click("tbody a")
        assert "taken" not in tab.title()
        # An element that somebody had smuggled in would run nothing either.
        tab.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
        tab.wait_for_timeout(300)
        assert tab.title() != "1"
        tab.context.close()
    assert any("Content Security Policy" in each for each in said)


def test_a_job_is_paused_by_its_button_and_a_viewer_without_rights_is_led_to_the_login(chromium: Browser) -> None:
    cluster = ViewedCluster([job_view(0)], tokens={"good"})
    with page_of(cluster, authentication=True) as page:
        tab = opened(chromium, page, "/job?table=id-0&name=copy0&account=acme")
        assert tab.title().startswith("Log in")
        tab.fill("input[name=token]", "bad")
        tab.click("main button")
        assert "is not known" in tab.inner_text("[role=alert]")
        tab.fill("input[name=token]", "good")
        tab.click("main button")
        tab.click("text=Pause")
        tab.wait_for_selector("text=The job is paused.")
        tab.click("text=Log out")
        tab.wait_for_selector("h1:has-text('Log in')")
        tab.context.close()
    assert cluster.done == [("pause", "id-0", "copy0", "acme")]
