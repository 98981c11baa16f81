"""A headless Chromium of the machine, for tests of the page in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Skipped by name where there is none: Debian has it as `chromium`."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium on this machine (apt-get install chromium)")
    with sync_playwright() as playwright:
        # Its sandbox needs namespaces that root in a container may not have; nothing but our own page is opened.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
