"""Faults of a command line as a whole: its encoding, and escape sequences, which errors show and do not obey.

`-w`: what is printed as answers change, and how it ends.

Errors on the command line: their wording, their format and their exit status.

Manual pages: one for each command, with the words of its help.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import FAULTS_SHOWN_MAX, USAGE_CHARS_MAX, ExitStatus, RootGroup, option_of, page
from iscp.model.job.job_row import JobState
from iscp.model.values.errors import Unavailable
from tests.fakes.admin import MISSING, FakeAdmin


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_an_argument_that_is_no_utf8_is_wrong_usage() -> None:
    told = run("job", "status", "/t", "a\udcffb")
    assert (told.exit_code, told.stdout) == (2, "")
    assert r"'a\udcffb' is not UTF-8" in told.stderr


def test_escapes_are_shown_and_not_obeyed() -> None:
    told = run("job", "list", "--\x1b[31mnope")
    assert (told.exit_code, told.stderr.splitlines()[-1]) == (2, r"error: No such option '--\x1b[31mnope'.")


def test_a_long_value_is_cut() -> None:
    told = run("-o", "json", "job", "list", "--limit", "x" * 100_000)
    assert len(json.loads(told.stderr)["error"]["message"]) <= USAGE_CHARS_MAX


@pytest.mark.parametrize("number", [2**63, -1])
def test_a_version_beyond_64_bits_is_wrong_usage(number: int) -> None:
    told = run("job", "wait", "/t", "a", "--version", str(number))
    assert (told.exit_code, told.stdout) == (2, "")
    assert "--version" in told.stderr


@pytest.mark.parametrize("arguments", [(), ("job",)])
def test_without_arguments_the_help_is_shown_as_it_is(arguments: tuple[str, ...]) -> None:
    told = run(*arguments)
    assert told.exit_code == 2
    assert "Commands:" in told.stderr.splitlines()
    assert "error:" not in told.stderr


def test_ctrl_c_ends_a_command_with_the_status_that_shells_have_for_it() -> None:
    @click.group(cls=RootGroup)
    def root() -> None: ...

    @root.command()
    def waiting() -> None:
        raise KeyboardInterrupt

    told = CliRunner().invoke(root, ["waiting"])
    assert (told.exit_code, told.output) == (ExitStatus.INTERRUPTED, "")


JOBS = ("/t", "a"), ("/t", "b"), ("/u", "c")

Run = Callable[..., Result]
Watch = Callable[..., Result]


@pytest.fixture
def watch(run: Run) -> Watch:
    """Runs a command with -w; between its answers the given steps are taken, then comes Ctrl-C."""

    def watch(*arguments: str, between: list[Callable[[], object]]) -> Result:
        steps = iter(between)

        def pause(seconds: float) -> None:
            assert seconds == 2.0
            for step in steps:
                step()
                return
            raise KeyboardInterrupt

        return run(*arguments, "-w", obj=Invocation(pause=pause))

    return watch


def documents(text: str) -> list[object]:
    found, rest = [], text
    while rest.strip():
        value, end = json.JSONDecoder().raw_decode(rest.lstrip())
        found.append(value)
        rest = rest.lstrip()[end:]
    return found


def test_answers_that_differ_follow_each_other_until_ctrl_c(watch: Watch, service: FakeAdmin) -> None:
    def advance() -> None:
        service.apply("/t", "a", 5)

    result = watch("job", "status", "/t", "a", "-o", "json", between=[lambda: None, advance, lambda: None])
    assert result.exit_code == 0, result.output
    assert [answer["applied_version"] for answer in documents(result.stdout)] == [-1, 5]  # type: ignore[index]
    assert service.asked["status"] == 4


def test_a_list_by_name_shows_what_comes(watch: Watch, service: FakeAdmin) -> None:
    def fail() -> None:
        service.show("/t", "b", state=JobState.ERROR)

    assert watch("job", "list", "--failed", "-o", "name", between=[fail]).stdout == "/t\tb\n"


def test_a_change_of_the_owner_does_not_end_it(watch: Watch, service: FakeAdmin) -> None:
    def lose() -> None:
        service.before = refuse

    def refuse(verb: str) -> None:
        service.before = lambda verb: None
        raise Unavailable("there is no owner")

    result = watch("job", "count", between=[lose, lambda: service.show("/t", "b", late=True)])
    assert result.exit_code == 0
    assert result.stdout == "3\n"


@pytest.mark.parametrize(
    "words",
    [
        ("job", "list"),
        ("job", "history", "/t", "a"),
        ("job", "describe", "/t", "a"),
        ("status",),
        ("node", "list"),
        ("shard", "list"),
        ("ring",),
    ],
)
def test_all_that_shows_something_can_be_watched(watch: Watch, words: tuple[str, ...]) -> None:
    result = watch(*words, between=[])
    assert result.exit_code == 0, result.output
    assert result.stdout


def test_without_it_a_command_shows_once(run: Run, service: FakeAdmin) -> None:
    run("job", "status", "/t", "a", obj=Invocation(pause=lambda seconds: pytest.fail("it waits")))
    assert service.asked["status"] == 1


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


@pytest.mark.parametrize(("command", "program"), [(cli, "iscp-admin"), (iscp, "iscp")])
def test_each_command_has_a_page_with_all_its_options(command: click.Group, program: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["man", str(tmp_path / "man1")], prog_name=program)
    assert result.exit_code == 0, result.output
    pages = {path.stem: path.read_text() for path in (tmp_path / "man1").iterdir()}
    assert f"{len(pages)} pages" in result.stdout
    shown_commands = [name for name, each in command.commands.items() if not each.hidden]
    assert set(pages) >= {program, *(f"{program}-{name}" for name in shown_commands)}
    for name, text in pages.items():
        words = name.removeprefix(program).replace("-", " ").split()
        shown = CliRunner().invoke(command, [*words, "--help"], prog_name=program).output
        options = {word.strip(",") for line in shown.splitlines() for word in line.split() if line.startswith("  -")}
        for option in sorted(each for each in options if each.startswith("--") and each[2:].replace("-", "").isalpha()):
            assert option.replace("-", "\\-") in text, name


def test_nothing_of_a_text_is_read_by_roff() -> None:
    @click.command(help=".SH no heading\n\n'quoted' and \\fBback\\fR --x")
    def odd() -> None: ...

    text = page(click.Context(odd, info_name="odd"))
    assert "\\&.SH no heading" in text
    assert "\\&'quoted' and \\efBback\\efR \\-\\-x" in text


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(cli, ["man", str(tmp_path / "file" / "man1")])
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr
