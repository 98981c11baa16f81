"""Print for commands, and put questions before they change much: texts of others never steer a terminal.

Every command prints by this module, and tables by `drawing`, which has each text escaped. JSON and YAML, which programs
read, have the escapes of their own form, so that nothing is lost.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import click

from iscp.core.values.errors import InvalidRequest
from iscp.core.values.untrusted_values import escaped, escaped_json


def say(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text, escaped."""
    click.echo(escaped(str(text)), err=err, nl=nl)


def say_headed(head: str, text: str, colour: str | None) -> None:
    """Print a line whose `head` is in a colour."""
    click.echo(f"{click.style(escaped(head), fg=colour)}{escaped(text)}")


def say_marked(head: str, parts: Iterable[tuple[str, bool]], plain: str) -> None:
    """Print a line whose marked parts stand out; `plain` instead of these where stdout is no terminal."""
    if not sys.stdout.isatty():
        say(f"{head}{plain}")
        return
    shown = ((escaped(text).replace("\n", " "), marked) for text, marked in parts)
    click.echo(escaped(head) + "".join(click.style(text, bold=True) if marked else text for text, marked in shown))


def say_drawn(drawn: str, *, clear: bool = False, nl: bool = True) -> None:
    """Print what `drawing` has drawn, or another function of this module has printed: its texts are escaped, and its
    colours are not. `clear` empties the terminal before.
    """
    if clear:
        click.clear()
    click.echo(drawn, nl=nl)


def json_text(value: Any, indent: int | None = None) -> str:
    """Letters of all scripts as they are, and JSON's escapes for what `say` escapes."""
    return escaped_json(json.dumps(value, indent=indent, ensure_ascii=False))


def yaml_text(value: Any) -> str:
    """Return YAML, as `json_text` returns JSON; if there is anything to escape, letters of all scripts have escapes
    too.
    """
    import yaml

    from iscp.cli.shell.untrusted_yaml import SafeDumper

    try:
        text = str(yaml.dump(value, Dumper=SafeDumper, sort_keys=False, allow_unicode=True))
    except UnicodeEncodeError:  # of a lone surrogate, as JSON may have it, libyaml makes no escape
        return str(yaml.safe_dump(value, sort_keys=False))
    return text if escaped(text) == text else str(yaml.dump(value, Dumper=SafeDumper, sort_keys=False))


def confirm(question: str) -> None:
    """Put the question before a command changes much.

    Raises click.Abort if the answer is no, InvalidRequest where nobody is there to answer.
    """
    try:
        agreed = click.confirm(escaped(question), err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        say(err=True)
        raise InvalidRequest(
            "there is no terminal for a question",
            about="--yes",
            remedy="Give --yes to go on without, or --dry-run to see what would be done",
        ) from None
    if not agreed:
        raise click.Abort
