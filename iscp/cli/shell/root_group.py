"""The programs as a whole: what they refuse, and where errors become words on stderr and an exit status."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from iscp.cli.shell.error_words import ERROR_PREFIX, show_error, show_usage_error
from iscp.cli.shell.exit_status import ExitStatus
from iscp.cli.shell.invocation import Invocation
from iscp.cli.shell.terminal import say
from iscp.core.values.errors import ConfigurationError, IscpError
from iscp.core.values.extras import extra_missing
from iscp.core.values.untrusted_values import one_line, shown

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
