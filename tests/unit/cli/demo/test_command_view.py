"""What the demo draws in a terminal while it runs."""

from __future__ import annotations

import io

from rich.console import Console

from iscp.cli.demo.command import View


def test_the_bar_has_a_line_of_its_own() -> None:
    written = io.StringIO()
    view = View(Console(file=written, force_terminal=True, color_system=None, width=100), days=10)
    with view.live():
        view.day(5, "2013-01-05", [])
    lines = [line.strip() for line in written.getvalue().splitlines()]
    bars = [line for line in lines if "━" in line]
    assert bars
    assert all(set(line) <= set("━╸╺ ") for line in bars), bars
