"""The programs as a whole: what they refuse, and where errors become words on stderr and an exit status.

`-w/--watch`: a command that shows something shows it again and again.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import IO, Any, TypeVar

import click

from iscp.cli.shell.context_file import Invocation
from iscp.cli.shell.error_words import ERROR_PREFIX, ExitStatus, show_error, show_usage_error
from iscp.cli.shell.terminal import say, say_drawn
from iscp.model.values.errors import ConfigurationError, IscpError, TemporaryError
from iscp.model.values.untrusted_values import extra_missing, one_line, shown

USAGE_CHARS_MAX = 1_000
"""Characters of what a command says of wrong arguments; of a longer text the middle is left out."""


class WrongUsage(click.UsageError):
    """Wrong usage, in one line that a terminal shows as it is, and that begins as all errors do.

    `option` is the option that is wrong, if one is.
    """

    def __init__(self, error: click.UsageError) -> None:
        super().__init__(one_line(error.format_message(), USAGE_CHARS_MAX), error.ctx)
        self.option = error.param.opts[0] if isinstance(error, click.BadParameter) and error.param else ""

    def show(self, file: IO[Any] | None = None) -> None:
        if self.ctx is not None:
            say(f"{self.ctx.get_usage()}\nTry '{self.ctx.command_path} --help' for help.\n", err=True)
        say(f"{ERROR_PREFIX}{self.message}", err=True)


class RootGroup(click.Group):
    """The root of `iscp-admin` and `iscp`."""

    own_words = False
    """Whether errors are in words of this machine alone, which may be of several lines."""

    def status_of(self, error: IscpError) -> int:
        """Return the exit status after an error."""
        return ExitStatus.FAILED

    def extra_of(self, command: str) -> str:
        """Return the extra that has what a command needs."""
        return "node"

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _usage_in_one_line():
            for each in args:
                _refuse_half_characters(each)
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _usage_in_one_line():
                return super().invoke(ctx)
        except IscpError as error:
            self._fail(ctx, error)
        except ModuleNotFoundError as error:
            if not (sentence := extra_missing(error, self.extra_of(ctx.invoked_subcommand or ""))):
                raise
            self._fail(ctx, ConfigurationError(sentence))
        except WrongUsage as error:
            if ctx.ensure_object(Invocation).output != "json":
                raise
            show_usage_error(error, error.option)
            ctx.exit(ExitStatus.WRONG_USAGE)
        except KeyboardInterrupt:  # of which click says "Aborted!", with the status of a failure
            ctx.exit(ExitStatus.INTERRUPTED)

    def _fail(self, ctx: click.Context, error: IscpError) -> None:
        show_error(error, ctx.ensure_object(Invocation).output, lines=self.own_words)
        ctx.exit(self.status_of(error))


def _refuse_half_characters(argument: str) -> None:
    """Refuse arguments that are no UTF-8: they reach a program as halves of surrogate pairs, which can be neither sent
    nor shown.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        raise click.UsageError(f"{shown(argument)} is not UTF-8. Write it so, or rename the file") from None


@contextmanager
def _usage_in_one_line() -> Iterator[None]:
    try:
        yield
    except (click.exceptions.NoArgsIsHelpError, WrongUsage):
        raise  # the message of the first is the help, of many lines
    except click.UsageError as error:
        raise WrongUsage(error) from error


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
