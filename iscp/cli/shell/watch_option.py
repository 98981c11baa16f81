"""`-w/--watch`: a command that shows something shows it again and again."""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from typing import Any, TypeVar

import click

from iscp.cli.shell.error_words import ERROR_PREFIX
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say, say_drawn
from iscp.core.values.errors import TemporaryError

F = TypeVar("F", bound=Callable[..., Any])

WATCH_EVERY_S = 2.0
"""Pause between two answers of `--watch`; what comes and goes between them is not seen."""


class _Frame(io.StringIO):
    """A frame is what one round prints, drawn as for where it will be shown."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def watched(command: F) -> F:
    """Give a command the option --watch; with it the command is run until Ctrl-C."""

    @functools.wraps(command)
    def run(*args: Any, watch: bool, **given: Any) -> Any:
        if not watch:
            return command(*args, **given)
        invocation = click.get_current_context().ensure_object(Invocation)
        return repeat(lambda: command(*args, **given), invocation)

    option = click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")
    return option(run)  # type: ignore[return-value]


def repeat(show: Callable[[], object], invocation: Invocation, *, apart: bool = True) -> None:
    """Repeat until Ctrl-C, or until `show` gives True: what it shows then is the last.

    On a terminal each answer replaces the one before; elsewhere those that differ follow each other, tables `apart`.
    """
    with suppress(KeyboardInterrupt):
        _repeat(show, invocation, apart)


def _repeat(show: Callable[[], object], invocation: Invocation, apart: bool) -> None:
    terminal = sys.stdout.isatty()
    last: str | None = None
    while True:
        frame = _Frame(terminal)
        try:
            with redirect_stdout(frame):
                over = show()
        except TemporaryError as error:  # the owner is changing, or the node is restarted
            say(f"{ERROR_PREFIX}{error.sentence}; trying again", err=True)
        else:
            if (drawn := frame.getvalue()) != last:
                _print(drawn, _between(invocation.output, apart and last is not None), terminal)
                last = drawn
            if over is True:
                return
        invocation.pause(WATCH_EVERY_S)


def _between(output: str, apart: bool) -> str:
    """Return what separates two answers if they follow each other."""
    if not apart or output in ("json", "name"):
        return ""
    return "---\n" if output == "yaml" else "\n"


def _print(drawn: str, between: str, terminal: bool) -> None:
    say_drawn(drawn if terminal else between + drawn, clear=terminal, nl=False)
    sys.stdout.flush()
