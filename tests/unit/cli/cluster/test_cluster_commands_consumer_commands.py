"""`iscp-admin consumer list` against a real server with a faked service."""

from __future__ import annotations

import json
from collections.abc import Callable

from click.testing import Result

from iscp.model.api.api_requests import ConsumerInfo
from tests.fakes.operators import FakeOperator

Run = Callable[..., Result]


def test_kinds_are_shown_with_what_each_does_or_why_it_cannot(run: Run, operator: FakeOperator) -> None:
    operator.kinds = [
        ConsumerInfo("replica", "The table itself.", "iscp-delta 1.0", own=True),
        ConsumerInfo("sqlite", "A table of SQLite.", "theirs 0.1"),
        ConsumerInfo("gone", fault="no package brings it"),
    ]
    lines = [line.split("  ") for line in run("consumer", "list").stdout.splitlines()]
    shown = [[word.strip() for word in line if word.strip()] for line in lines]
    assert shown == [
        ["KIND", "ABOUT", "PACKAGE"],
        ["replica", "The table itself."],
        ["sqlite", "A table of SQLite.", "theirs 0.1"],
        ["gone", "no package brings it"],
    ]
    told = json.loads(run("consumer", "list", "-o", "json").stdout)
    assert told[1] == {
        "name": "sqlite",
        "about": "A table of SQLite.",
        "package": "theirs 0.1",
        "own": False,
        "fault": "",
    }
    assert run("consumer", "list", "-o", "name").stdout == "replica\nsqlite\ngone\n"
    assert [each["own"] for each in told] == [True, False, False]
