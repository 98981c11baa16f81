"""The options by which commands that work at the storage itself, beside or without nodes, find a cluster's job log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def home_options(data: str, config: str) -> Callable[[F], F]:
    """--data and --config, of which a command needs one (`require_one_home`), with what their help says."""

    def add(command: F) -> F:
        command = click.option(
            "--config",
            "file",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help=config,
        )(command)
        return click.option(
            "--data", type=click.Path(file_okay=False, exists=True, path_type=Path), metavar="DIR", help=data
        )(command)

    return add


def require_one_home(data: Path | None, file: Path | None) -> None:
    """Raises click.UsageError."""
    if (data is None) == (file is None):
        raise click.UsageError("give either --data or --config")
