"""Manual pages: one for each command, with the words of its help."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.cli.shell.root_group import page


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
