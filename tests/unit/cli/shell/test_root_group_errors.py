"""Errors on the command line: their wording, their format and their exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result

from iscp.cli.shell.root_group import FAULTS_SHOWN_MAX, option_of
from tests.fakes.admin import MISSING, FakeAdmin

Run = Callable[..., Result]


def ok(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


def register(run: Run, name: str = "a", *more: str) -> Result:
    return run("job", "register", "--table", "/t", "--name", name, "--target", f"/copy/{name}", *more)


def test_another_job_of_the_name_is_a_failure_with_the_difference(run: Run) -> None:
    ok(register(run, "a", "--key", "id"))
    assert ok(register(run, "a", "--key", "id")) == "a on /t: exists already\n"
    kept = register(run, "a", "--key", "id,day")
    assert (kept.exit_code, kept.stdout) == (1, "")
    assert kept.stderr.splitlines() == [
        'error: a on /t exists already, and was left as it is; it differs (key: ["id"] → ["id", "day"])',
        "  field: --name",
        "  remedy: Rebuild its target by `iscp-admin apply --resync` or `iscp-admin job resync`, or name another",
    ]
    run_otherwise = register(run, "a", "--key", "id", "--priority", "3")
    assert run_otherwise.exit_code == 1
    assert "(priority: - → 3)" in run_otherwise.stderr
    assert "remedy: Change it by `iscp-admin job update`, or name another" in run_otherwise.stderr
    told = register(run, "a", "--key", "id,day", "-o", "json")
    assert (told.exit_code, json.loads(told.stdout)["created"]) == (1, False)
    assert json.loads(told.stderr)["error"]["name"] == "INVALID_REQUEST"


def test_of_a_file_the_others_are_created_and_each_difference_is_shown(run: Run) -> None:
    ok(register(run, "a"))
    jobs = "- {table: /t, name: a, target: /other}\n- {table: /t, name: b, target: /copy/b}\n"
    told = run("job", "register", "-f", "-", stdin=jobs)
    assert (told.exit_code, told.stdout) == (1, "b on /t: created\n")
    assert 'a on /t exists already, and was left as it is; it differs (target: "/copy/a" → "/other")' in told.stderr


def test_what_is_refused_of_a_file_is_named_by_its_place(run: Run) -> None:
    jobs = "- {table: /t, name: a, target: /x}\n- {table: /missing/x, name: b, target: /y}\n"
    told = run("job", "register", "-f", "-", stdin=jobs)
    assert "  field: <stdin>[1].table" in told.stderr


@pytest.mark.parametrize(
    ("path", "option"),
    [
        ("spec.iteration.consumer.key", "--key"),
        ("spec.iteration.consumer.kind", "--consumer"),
        ("spec.iteration.consumer.options.shards", "--shards"),
        ("spec.iteration.consumer.options.path", "--options"),
        ("spec.iteration.adopt_from", "--from-version"),
        ("spec.trigger.schedule.interval", "--every"),
        ("job.name", "--name"),
        ("endpoint", "endpoint"),
    ],
)
def test_a_field_is_named_by_its_option(path: str, option: str) -> None:
    assert option_of(path) == option


def test_with_json_errors_are_json(run: Run, service: FakeAdmin) -> None:
    def error(*arguments: str) -> tuple[int, dict[str, Any]]:
        told = run("-o", "json", *arguments)
        assert told.stdout == ""
        return told.exit_code, json.loads(told.stderr)["error"]

    assert error("job", "register", "--table", f"{MISSING}/x", "--name", "a", "--target", "/copy") == (
        1,
        {
            "code": 10_001,
            "name": "TABLE_NOT_FOUND",
            "field": "--table",
            "message": f"there is no Delta table at {MISSING}/x",
            "remedy": "Give the path of a directory that has a _delta_log",
        },
    )
    register(run)
    status, late = error("job", "wait", "/t", "a", "--version", "9", "--timeout", "10ms")
    assert (status, late["name"]) == (3, "TIMEOUT")
    status, usage = error("job", "list", "--state", "fine")
    assert (status, usage["code"], usage["field"]) == (2, 10_000, "--state")
    assert "job list --help" in usage["remedy"]


def test_all_that_is_refused_of_a_file_is_named_at_once(run: Run) -> None:
    jobs = "\n".join(f"- {{table: {table}, name: n, target: /x}}" for table in ("/t", "/missing/x", "/u", "/missing/y"))
    told = run("job", "register", "-f", "-", stdin=jobs)
    fields = [line for line in told.stderr.splitlines() if line.startswith("  field: ")]
    assert (told.exit_code, fields) == (1, ["  field: <stdin>[1].table", "  field: <stdin>[3].table"])


def test_of_very_many_faults_some_are_shown_and_how_many_more_there_are(run: Run) -> None:
    jobs = "\n".join(f"- {{table: /t, name: n{number}}}" for number in range(FAULTS_SHOWN_MAX + 7))
    told = run("job", "register", "-f", "-", stdin=jobs)
    shown = [line for line in told.stderr.splitlines() if line.startswith("error: ")]
    assert len(shown) == FAULTS_SHOWN_MAX + 1
    assert shown[-1] == "error: 7 more faults are not shown"
