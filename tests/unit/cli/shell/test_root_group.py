"""Faults of a command line as a whole: its encoding, and escape sequences, which errors show and do not obey."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import cli
from iscp.cli.shell.exit_status import ExitStatus
from iscp.cli.shell.root_group import USAGE_CHARS_MAX, RootGroup


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
