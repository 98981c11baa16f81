"""`iscp-admin context`, and commands that reach the endpoint of the current context over gRPC."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.server.admin.admin_server import AdminServer
from tests.fakes.admin import FakeAdmin

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(*arguments: str, **environ: str) -> Result:
        given = {"XDG_CONFIG_HOME": str(tmp_path), "ISCP_ENDPOINT": None, **environ}
        return CliRunner().invoke(cli, arguments, env=given)

    return run


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = AdminServer(FakeAdmin(), "127.0.0.1:0")
    server.start()
    yield server.address
    server.stop(grace_s=0)


def test_commands_go_to_the_current_context(run: Run, endpoint: str) -> None:
    assert "is the current one" in run("context", "set", "lake", "--endpoint", endpoint).stdout
    assert run("job", "count").stdout == "0\n"
    assert "current" not in run("context", "set", "away", "--endpoint", "127.0.0.1:1").stdout
    assert run("job", "count", "--context", "lake").stdout == "0\n"
    assert "127.0.0.1:1" in run("context", "use", "away").stdout
    assert run("context", "show", "-o", "jsonpath=.endpoint").stdout == "127.0.0.1:1\n"
    assert run("--context", "lake", "job", "count").stdout == "0\n"
    assert run("job", "count", "--endpoint", endpoint).stdout == "0\n"
    assert run("job", "count", ISCP_ENDPOINT=endpoint).stdout == "0\n"


def test_contexts_are_listed_shown_changed_and_deleted(run: Run) -> None:
    run("context", "set", "b", "--endpoint", "h:1")
    run("context", "set", "a", "--endpoint", "h:2")
    run("context", "set", "a", "--endpoint", "h:3")
    rows = json.loads(run("context", "list", "-o", "json").stdout)
    assert [(each["name"], each["current"], each["endpoint"]) for each in rows] == [
        ("a", False, "h:3"),
        ("b", True, "h:1"),
    ]
    assert run("context", "list").stdout.splitlines()[2].split() == ["*", "b", "h:1"]
    shown = json.loads(run("context", "show", "a", "-o", "json").stdout)
    assert (shown["name"], shown["source"], shown["endpoint"]) == ("a", "context", "h:3")
    assert "no context is current" in run("context", "delete", "b").stdout
    assert run("context", "show", "-o", "jsonpath=.source").stdout == "default\n"
    assert run("context", "show", "-o", "jsonpath=.source", ISCP_ENDPOINT="h:9").stdout == "ISCP_ENDPOINT\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("context", "use", "none"), 1, "Known are a"),
        (("context", "delete", "none"), 1, "there is no context 'none'"),
        (("context", "set", "b"), 1, "context.b.endpoint"),
        (("context", "set", "a b", "--endpoint", "h:1"), 1, "is no name for a context"),
        (("context", "set", "b", "--endpoint", "h"), 2, "is not HOST:PORT"),
        (("context", "set", "b", "--endpoint", "h:1", "--ca-file", "/no/file"), 2, "--ca-file"),
        (("job", "count", "--context", "none"), 1, "there is no context 'none'"),
    ],
)
def test_what_is_wrong_is_refused_and_the_file_stays(run: Run, words: tuple[str, ...], status: int, said: str) -> None:
    run("context", "set", "a", "--endpoint", "h:1")
    before = run("context", "list").stdout
    refused = run(*words)
    assert refused.exit_code == status
    assert said in refused.stderr
    assert run("context", "list").stdout == before


def test_without_a_context_the_remedy_says_how_to_make_one(run: Run) -> None:
    assert "See `iscp-admin context set`" in run("context", "use", "lake").stderr
