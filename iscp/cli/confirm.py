"""The question before a command changes much."""

from __future__ import annotations

import sys

import click


def confirm(question: str) -> None:
    """Raises click.Abort if the answer is no, ClickException where nobody is there to answer."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        click.echo(err=True)
        raise click.ClickException(
            "There is no terminal for a question. Give --yes to go on without, or --dry-run to see what would be done"
        ) from None
    if not agreed:
        raise click.Abort
