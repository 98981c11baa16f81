"""Files that both programs make of themselves: the script of a shell's completion, and manual pages."""

from __future__ import annotations

from pathlib import Path

import click

from iscp.cli.shell import render
from iscp.cli.shell.completion import script
from iscp.cli.shell.man_pages import write_pages
from iscp.cli.shell.terminal import say

shell_argument = click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
pages_argument = click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))


def show_script(shell: str, root: click.Command, program: str, output: str) -> None:
    text = script(shell, root, program)
    if not render.show({"shell": shell, "script": text}, output):
        say(text)


def show_written(root: click.Command, program: str, directory: Path, output: str) -> None:
    """Write the manual pages of a program, and say how many there are."""
    pages = len(write_pages(root, program, directory))
    if not render.show({"directory": str(directory), "pages": pages}, output):
        say(f"{pages} pages are in {directory}")
