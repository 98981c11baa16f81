"""The page of all commands, from click: usage, arguments and options as `--help` has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli as iscp_admin
from tests.site.tables import code, plain, table

PROGRAMS = {"iscp-admin": iscp_admin, "iscp": iscp}

_HEAD = """\
# Commands

All commands with their options, as `--help` shows them. [Command line](../cli.md) has what they share: endpoints,
output, exit statuses.
"""


def page() -> str:
    """Return the page of both programs."""
    lines = [_HEAD]
    for name, program in PROGRAMS.items():
        context = click.Context(program, info_name=name)
        shared = frozenset(each.name for each in program.params)
        lines += [f"## {name}", "", *_command(program, context, frozenset()), *_below(program, context, shared)]
    return "\n".join(lines)


def _below(group: click.Group, context: click.Context, shared: frozenset[str | None]) -> Iterator[str]:
    """Yield all commands of a group, each group among them with its own; `shared` are options that all have."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if command.hidden:
            continue
        inner = click.Context(command, parent=context, info_name=name)
        yield from (f"### {inner.command_path}", "", *_command(command, inner, shared))
        if isinstance(command, click.Group):
            yield from _below(command, inner, shared)


def _command(command: click.Command, context: click.Context, shared: frozenset[str | None]) -> Iterator[str]:
    """Yield what a command is for, its usage and its options but for those that all commands have."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            yield from ("```text", *paragraph.splitlines()[1:], "```", "")
        elif paragraph.strip():
            yield from (plain(paragraph), "")
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ("```text", f"{context.command_path} {usage}", "```", "")
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    yield from table(
        ("option", "meaning"),
        (_option(each, context) for each in options if each.name not in shared),
    )


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    """Return the spelling of an option and what it does, with its default, bounds and variable."""
    record = option.get_help_record(context)
    assert record is not None
    spelling, text = record
    if option.envvar and str(option.envvar) not in text:
        text = f"{text} [variable: {option.envvar}]"
    return code(spelling), plain(text)
