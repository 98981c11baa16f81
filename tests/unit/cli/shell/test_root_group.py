"""Faults of a command line as a whole: its encoding, and escape sequences, which errors show and do not obey.

`-w`: what is printed as answers change, and how it ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.root_group import USAGE_CHARS_MAX, ExitStatus, RootGroup
from iscp.model.job.job_row import JobState
from iscp.model.values.errors import Unavailable
from tests.fakes.admin import FakeAdmin


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
