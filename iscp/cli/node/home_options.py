"""The options by which commands that work at the storage itself, beside or without nodes, find a cluster's job log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def config_option(about: str, *, exists: bool = False) -> Callable[[F], F]:
    """Return the option --config, as `file`, which has to be there if `exists`."""
    path = click.Path(dir_okay=False, exists=exists, path_type=Path)
    return click.option("--config", "file", type=path, metavar="FILE", help=about)


def home_options(data: str, config: str) -> Callable[[F], F]:
    """Return --data and --config, of which a command needs one (`require_one_home`), with what their help says."""
    path = click.Path(file_okay=False, exists=True, path_type=Path)
    data_option = click.option("--data", type=path, metavar="DIR", help=data)
    return lambda command: data_option(config_option(config)(command))


def require_one_home(data: Path | None, file: Path | None) -> None:
    """Raises click.UsageError unless exactly one of both is given."""
    if (data is None) == (file is None):
        raise click.UsageError("give either --data or --config")
