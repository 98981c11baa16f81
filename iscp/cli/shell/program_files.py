"""Files that both programs make of themselves: the script of a shell's completion, and manual pages.

Manual pages (man, section 1), made of what the commands' own help is made of: one page for each command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from iscp import __version__
from iscp.cli.shell import render
from iscp.cli.shell.arguments import script
from iscp.cli.shell.terminal import say
from iscp.model.values.errors import ConfigurationError


def write_pages(program: click.Command, name: str, directory: Path) -> list[Path]:
    """Write the manual pages into `directory`, which is made. Raises ConfigurationError if a page cannot be written."""
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for context in _contexts(click.Context(program, info_name=name)):
            path = directory / f"{context.command_path.replace(' ', '-')}.1"
            path.write_text(page(context), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise ConfigurationError(
            f"{directory} cannot be written: {error.strerror or error}", about="DIR", remedy="Name another directory"
        ) from error
    return written


def _contexts(context: click.Context) -> Iterator[click.Context]:
    yield context
    for name, command in _commands(context):
        yield from _contexts(click.Context(command, parent=context, info_name=name))


def _commands(context: click.Context) -> list[tuple[str, click.Command]]:
    if not isinstance(context.command, click.Group):
        return []
    found = ((name, context.command.get_command(context, name)) for name in context.command.list_commands(context))
    return [(name, command) for name, command in found if command is not None and not command.hidden]


def page(context: click.Context) -> str:
    """Return the page in roff."""
    command, path = context.command, context.command_path
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [f'.TH "{_plain(path.replace(" ", "-").upper())}" 1 "" "iscp {__version__}"']
    lines += [".SH NAME", f"{_plain(path.replace(' ', '-'))} \\- {_plain(command.get_short_help_str(200))}"]
    lines += [".SH SYNOPSIS", f"\\fB{_plain(path)}\\fR {_plain(usage)}"]
    lines += [".SH DESCRIPTION", *_paragraphs(command.help or "")]
    records = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    lines += _section("OPTIONS", records)
    lines += _section("COMMANDS", [(name, each.get_short_help_str(200)) for name, each in _commands(context)])
    if context.parent is not None:
        lines += [".SH SEE ALSO", f"\\fB{_plain(context.parent.command_path.replace(' ', '-'))}\\fR(1)"]
    return "\n".join(lines) + "\n"


def _section(title: str, records: list[tuple[str, str]]) -> list[str]:
    shown = [line for name, about in records for line in (".TP", f"\\fB{_plain(name)}\\fR", _plain(about) or "\\&")]
    return [f".SH {title}", *shown] if shown else []


def _paragraphs(text: str) -> list[str]:
    found = [" ".join(each.split()) for each in re.split(r"\n\s*\n", text.partition("\f")[0])]
    return [line for each in found if each for line in (".PP", _plain(each.replace("\b", "").strip()))]


def _plain(text: str) -> str:
    """Escape the text so that roff prints it and does not read it."""
    escaped = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


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
