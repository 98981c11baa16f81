"""`iscp-admin job edit` against a real server with a faked service: the editor is a program of one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.model.api.api_requests import JobName, RegisterRequest, UpdateRequest
from iscp.model.values.errors import InvalidRequest
from iscp.server.admin.admin_server import AdminServer
from tests.fakes.admin import FakeAdmin

SPEC = json.dumps({"iteration": {"consumer": {"kind": "replica", "target": "/copy", "key": ["id"]}}})

Edit = Callable[..., Result]


@pytest.fixture
def service() -> FakeAdmin:
    admin = FakeAdmin()
    admin.register([RegisterRequest(JobName("/t", "a"), SPEC)])
    return admin


@pytest.fixture
def edit(service: FakeAdmin, tmp_path: Path) -> Iterator[Edit]:
    """Edits the job by a script of sed, or another program."""
    server = AdminServer(service, "127.0.0.1:0")
    server.start()

    def edit(script: str, *more: str, editor: str = "", stdin: str = "") -> Result:
        own = {"EDITOR": editor or f"sed -i '{script}'", "VISUAL": "", "TMPDIR": str(tmp_path)}
        line = ["--endpoint", server.address, "job", "edit", "/t", "a", *more]
        return CliRunner(env=own).invoke(cli, line, input=stdin)

    yield edit
    server.stop(grace_s=0)


def spec(service: FakeAdmin) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(service.status(JobName("/t", "a")).spec_json)
    return found


def kept(result: Result) -> Path | None:
    found = re.search(r"^your text is kept in (.*)$", result.stderr, re.MULTILINE)
    return Path(found[1]) if found else None


def is_refused(result: Result, words: str) -> str:
    """The text that is kept of what was refused."""
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert words in result.stderr
    path = kept(result)
    assert path is not None
    assert path.stat().st_mode & 0o77 == 0
    return path.read_text()


def test_what_is_changed_is_applied_and_shown(edit: Edit, service: FakeAdmin, tmp_path: Path) -> None:
    done = edit("$ a target_lag: 30s")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("update a on /t (target_lag: - → 30.0)\n")
    assert spec(service)["target_lag"] == 30.0
    again = json.loads(edit("/^target_lag/d", "-o", "json").stdout)
    assert [step["changes"] for step in again["steps"]] == [["target_lag: 30.0 → -"]]
    assert "target_lag" not in spec(service)
    assert list(tmp_path.iterdir()) == []


def test_with_dry_run_it_is_shown_alone(edit: Edit, service: FakeAdmin) -> None:
    assert "would be " in edit("$ a target_lag: 30s", "--dry-run").stdout
    assert "target_lag" not in spec(service)


def test_a_target_is_rebuilt_once_that_is_agreed_to(edit: Edit, service: FakeAdmin) -> None:
    script = "s/- id/- day/"
    for answer in ("", "n\n"):
        declined = edit(script, stdin=answer)
        assert "rebuild 1 job?" in declined.stderr
        assert "- day" in is_refused(declined, 'a on /t: key: ["id"] → ["day"]')
    assert spec(service)["iteration"]["consumer"]["key"] == ["id"]
    assert edit(script, stdin="y\n").stdout.startswith("resync a on /t")
    assert spec(service)["iteration"]["consumer"]["key"] == ["day"]
    assert edit("s/- day/- id/", "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("s/^name: a/name: b/", "another job, or more than one"),
        ("s/^table: .*/table: \\/u/", "another job, or more than one"),
        ("$ a nope: 1", "nope is not a known field"),
        ("$ a target_lag: soon", "is not a duration"),
        ("s/^key:/key: [/", "is not YAML"),
        ("/^[a-z-]/d", "holds no job"),
        ("s/a/\\xff/", "cannot be read"),
    ],
)
def test_what_is_wrong_is_refused_and_kept(edit: Edit, service: FakeAdmin, script: str, words: str) -> None:
    before = spec(service)
    result = edit(script)
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr
    assert (path := kept(result)) is not None
    assert path.stat().st_size
    assert spec(service) == before


def test_what_the_node_refuses_is_kept_too(edit: Edit, service: FakeAdmin) -> None:
    def refuse(verb: str) -> None:
        if verb == "check":
            service.failures.append(InvalidRequest("is outside the roots", field="spec.iteration.consumer.target"))

    service.before = refuse
    assert "target: /y" in is_refused(edit("s/^target: .*/target: \\/y/", "--yes"), "is outside the roots")


@pytest.mark.parametrize("script", ["", "s/^key:$/key:  /", "$ a # a remark", 's/^name: a/name: "a"/'])
def test_without_a_change_nothing_is_done(edit: Edit, service: FakeAdmin, script: str) -> None:
    result = edit(script)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nothing was changed" in result.stderr
    assert service.asked.keys() <= {"register", "status"}


def test_of_an_untouched_file_nothing_is_kept(edit: Edit, tmp_path: Path) -> None:
    for editor in ("true", "false", "no-such-editor"):
        result = edit("", editor=editor)
        assert (result.exit_code, kept(result), list(tmp_path.iterdir())) == (1, None, [])
    assert "EDITOR" in result.stderr


def test_a_change_by_another_meanwhile_is_not_written_over(edit: Edit, service: FakeAdmin) -> None:
    def interfere(verb: str) -> None:
        if verb == "status" and service.asked.get("status", 0) == 2:
            service.update([UpdateRequest(JobName("/t", "a"), json.dumps({"iteration": {"priority": 7}}))])

    service.before = interfere
    result = edit("$ a target_lag: 30s")
    assert "was changed by somebody else meanwhile" in result.stderr
    assert "target_lag: 30s" in is_refused(result, "remedy: Edit it again")
    assert spec(service)["iteration"]["priority"] == 7
    assert "target_lag" not in spec(service)
