"""Pictures of the page for the documents, by headless Chromium over a cluster in memory: scripts/generate-screenshots.

The cluster and its clock are always the same; so are the pictures, but for what another Chromium draws otherwise.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests.fakes.busy_cluster import busy_cluster
from tests.fakes.clock import FakeClock
from tests.fakes.served_page import page_of
from tests.fakes.viewed_cluster import NOW_S

FOLDER = Path(__file__).parents[1] / "docs" / "page"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PICTURES = {
    "freshness": ("/", 1200, 720, "light"),
    "job": ("/job?table=id-1&name=copy1&account=acme", 1200, 720, "light"),
    "lineage": ("/lineage?place=/lake/indexes/payments_3", 1200, 620, "light"),
    "cluster": ("/cluster", 1200, 620, "dark"),
}
"""By its name, each picture's path, its width and height in pixels, and the browser's colours."""


def draw(browser: Browser, address: str, folder: Path) -> None:
    for name, (path, width, height, scheme) in PICTURES.items():
        size = {"width": width, "height": height}
        context = browser.new_context(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
        tab = context.new_page()
        tab.goto(f"http://{address}/")  # a page of this origin, as searches are made for these alone
        tab.goto(f"http://{address}{path}")
        tab.wait_for_selector("#live-state:text-is('live')")
        tab.wait_for_load_state("load")
        tab.screenshot(path=folder / f"{name}.png", animations="disabled")
        context.close()


def main() -> int:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        print("there is no Chromium on this machine (apt-get install chromium)", file=sys.stderr)  # noqa: T201
        return 1
    FOLDER.mkdir(exist_ok=True)
    with page_of(busy_cluster(), FakeClock(NOW_S)) as page, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        draw(browser, page.address, FOLDER)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
