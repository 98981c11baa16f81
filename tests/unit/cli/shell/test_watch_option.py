"""`-w`: what is printed as answers change, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from iscp.cli.shell.invocation import Invocation
from iscp.core.job.job_row import JobState
from iscp.core.values.errors import Unavailable
from tests.fakes.admin import FakeAdmin

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
