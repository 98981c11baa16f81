"""`iscp-admin build` against a real server with a faked service."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.cli.shell.context_file import Invocation
from iscp.model.api.api_requests import JobName, RegisterRequest
from iscp.model.build.build_progress import BuildNodeView, BuildStage, BuildTaskView, BuildView, TaskState
from iscp.model.values.errors import Unavailable
from iscp.server.admin.admin_server import AdminServer, BuildServer
from tests.fakes.admin import FakeAdmin
from tests.fakes.shown_builds import FakeBuilds

TASKS = (BuildTaskView(4, "x", "n-1", TaskState.RUNNING), BuildTaskView(5, "x", "n-2", TaskState.WAITING))
BUILDING = BuildView(
    *("/t", "t-1", "default", ("x",), 7, BuildStage.BUILDING, 1.0, 100, 800, 0.5, 10.0, 80.0, 5.0, TASKS),
    *(50, 400, (BuildNodeView("n-1", 30, 240), BuildNodeView("n-2", 20, 160))),
)
OTHER = replace(BUILDING, account="acme", jobs=("x", "y"), tasks=())
SPEC = '{"iteration": {"consumer": {"kind": "replica", "target": "/copy", "key": ["id"]}}}'

Run = Callable[..., Result]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def builds() -> FakeBuilds:
    return FakeBuilds([[BUILDING, OTHER]])


@pytest.fixture
def endpoint(builds: FakeBuilds) -> Iterator[str]:
    admin = FakeAdmin()
    admin.register([RegisterRequest(JobName("/t", name), SPEC) for name in ("x", "idle")])
    server = AdminServer(admin, "127.0.0.1:0", services=[BuildServer(builds)])
    server.start()
    yield server.address
    server.stop(grace_s=0)


@pytest.fixture
def run(endpoint: str) -> Run:
    def run(*arguments: str, **how: Any) -> Result:
        return CliRunner().invoke(cli, ["--endpoint", endpoint, "build", *arguments], **how)

    return run


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def pausing(times: int) -> Invocation:
    """Its last pause is ended by Ctrl-C."""
    left = iter(range(times))

    def pause(seconds: float) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt

    return Invocation(pause=pause)


def test_builds_are_listed_of_all_tables_or_of_one(run: Run, builds: FakeBuilds) -> None:
    assert [line.split()[0] for line in ok(run("list")).splitlines()] == ["TABLE", "/t", "/t"]
    assert ok(run("list", "/t", "-o", "name")) == "/t\n/t\n"
    first, second = json.loads(ok(run("list", "-o", "json")))
    assert (first["state"], first["done_share"], first["jobs"], second["account"]) == ("building", 0.5, ["x"], "acme")
    assert first["tasks"][0] == {"range_id": 4, "job_name": "x", "node_id": "n-1", "state": "running"}
    assert (first["rows_done"], first["rows_total"], first["bytes_done"], first["bytes_total"]) == (50, 100, 400, 800)
    assert (first["rows_per_s"], first["bytes_per_s"], first["left_s"]) == (10.0, 80.0, 5.0)
    assert first["nodes"][0] == {"node_id": "n-1", "rows_done": 30, "bytes_done": 240}
    assert yaml.safe_load(ok(run("list", "-o", "yaml"))) == [first, second]
    assert ok(run("list", "-o", "jsonpath=[*].tasks[*].node_id")) == "n-1\nn-2\n"
    builds.views = [[]]
    assert json.loads(ok(run("list", "-o", "json"))) == []


def test_the_builds_of_a_job_are_those_that_it_is_in(run: Run, builds: FakeBuilds) -> None:
    assert [each["account"] for each in json.loads(ok(run("status", "/t", "-o", "json")))] == ["default", "acme"]
    assert [each["account"] for each in json.loads(ok(run("status", "/t", "x", "-o", "json")))] == ["default"]
    (mine,) = json.loads(ok(run("status", "/t", "y", "--account", "acme", "-o", "json")))
    assert mine["jobs"] == ["x", "y"]
    shown = ok(run("status", "/t", "x"))
    assert "by node" in shown
    assert "by range" in shown


def test_what_is_not_built_is_said_so_and_what_is_not_there_is_an_error(run: Run, builds: FakeBuilds) -> None:
    assert ok(run("status", "/t", "idle")) == "/t idle is not being built\n"
    unknown = run("status", "/t", "idel")
    assert (unknown.exit_code, "idel" in unknown.stderr) == (1, True)
    assert run("list", "/none").exit_code == 1
    builds.views = [[]]
    assert ok(run("status", "/t")) == "/t is not being built\n"
    assert json.loads(ok(run("status", "/t", "-o", "json"))) == []


def test_a_watch_ends_when_nothing_is_left_to_be_built(run: Run, builds: FakeBuilds) -> None:
    """Also where the owner changes meanwhile; what stays the same is shown once."""
    further = replace(BUILDING, done_share=0.75)
    lost = Unavailable("there is no owner")
    builds.views = [[BUILDING], [BUILDING], lost, [further], []]
    result = run("watch", "/t", "x", obj=pausing(9))
    lines = ok(result).splitlines()
    assert [line.split("  ")[3] for line in lines[:2]] == ["50.0%", "75.0%"]
    assert lines[2:] == ["/t x is not being built"]


def test_a_watch_gives_json_to_programs_and_ends_by_ctrl_c(run: Run, builds: FakeBuilds) -> None:
    builds.views = [[BUILDING], [replace(BUILDING, done_share=0.75)]]
    text = ok(run("watch", "/t", "-o", "json", obj=pausing(2)))
    first, end = json.JSONDecoder().raw_decode(text)
    assert (first[0]["done_share"], json.loads(text[end:])[0]["done_share"]) == (0.5, 0.75)


def test_on_a_terminal_a_watch_draws_bars_each_in_place_of_the_one_before(endpoint: str, builds: FakeBuilds) -> None:
    builds.views = [[BUILDING], [replace(BUILDING, done_share=0.75)], []]
    terminal = Terminal()
    with redirect_stdout(terminal):
        cli(["--endpoint", endpoint, "build", "watch", "/t"], standalone_mode=False, obj=pausing(9))
    _, *frames = terminal.getvalue().split("\x1b[2J")
    assert len(frames) == 3
    assert ["█" * 20 + "░" * 20 in frames[0], "█" * 30 + "░" * 10 in frames[1]] == [True, True]
    assert frames[2].endswith("/t is not being built\n")


def test_builds_can_be_watched_as_other_lists(run: Run, builds: FakeBuilds) -> None:
    for words in (("list",), ("status", "/t")):
        assert ok(run(*words, "-w", obj=pausing(0)))


def test_a_build_is_aborted_of_a_job_or_of_all(run: Run, builds: FakeBuilds) -> None:
    assert ok(run("abort", "/t", "x")) == "/t x is paused, and 2 tasks have ended\n"
    assert json.loads(ok(run("abort", "/t", "-o", "json"))) == {"table": "/t", "tasks": 2}
    ok(run("abort", "/t", "y", "--account", "acme"))
    assert [each[1] for each in builds.changes] == [
        JobName("/t", "x"),
        JobName("/t", ""),
        JobName("/t", "y", "acme"),
    ]
    refused = run("abort", "/t", "idle")
    assert refused.exit_code == 1
    assert "is not being built" in refused.stderr


def test_a_table_is_built_next(run: Run) -> None:
    assert ok(run("priority", "/t")) == "/t is built next\n"
    assert ok(run("priority", "/t")) == "/t is being built, or is next already\n"
    assert json.loads(ok(run("priority", "/u", "-o", "json"))) == {"table": "/u", "changed": True}


def test_ranges_are_split_and_merged(run: Run, builds: FakeBuilds) -> None:
    assert ok(run("split", "/t")) == "/t has 8 ranges to be built\n"
    assert ok(run("merge", "/t", "--range", "5")) == "/t has 1 range to be built\n"
    assert json.loads(ok(run("split", "/t", "--range", "4", "-o", "json"))) == {"table": "/t", "ranges": 8}
    assert builds.changes == [("split", "/t", 0), ("merge", "/t", 5), ("split", "/t", 4)]
    assert run("split", "/t", "--range", "-1").exit_code == 2
    assert run("split", "/none").exit_code == 1
