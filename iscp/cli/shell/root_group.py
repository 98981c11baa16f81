"""The program as a whole: arguments that no node could take are refused, and what is said of others can be shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from iscp.core.values.untrusted_values import one_line, shown

USAGE_CHARS_MAX = 1_000
"""Characters of what a command says of wrong arguments; of a longer text the middle is left out."""


class RootGroup(click.Group):
    """The root of `iscp-admin` and `iscp`. Wrong usage is reported in one line that a terminal shows as it is."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _usage_in_one_line():
            for each in args:
                _refuse_half_characters(each)
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _usage_in_one_line():
            return super().invoke(ctx)


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
    except click.exceptions.NoArgsIsHelpError:
        raise  # its message is the help, of many lines
    except click.UsageError as error:
        message = error.format_message()
        line = one_line(message, USAGE_CHARS_MAX)
        if line != message:
            raise click.UsageError(line, error.ctx) from error
        raise
