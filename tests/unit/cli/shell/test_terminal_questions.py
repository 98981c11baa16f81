"""The confirmation before many changes: accepted, declined, and without a terminal."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from iscp.cli.shell.root_group import RootGroup
from iscp.cli.shell.terminal import confirm


@click.group(cls=RootGroup)
def program() -> None:
    pass


@program.command()
def remove() -> None:
    confirm("remove 3 jobs?")
    click.echo("removed")


@pytest.mark.parametrize(("typed", "status", "words"), [("y\n", 0, "removed"), ("n\n", 1, "Aborted"), ("", 1, "--yes")])
def test_yes_goes_on_no_ends_and_silence_names_the_option(typed: str, status: int, words: str) -> None:
    result = CliRunner().invoke(program, ["remove"], input=typed)
    assert result.exit_code == status
    assert words in result.output
    assert ("removed" in result.stdout) is (status == 0)
