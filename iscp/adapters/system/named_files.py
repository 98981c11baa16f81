"""Reads small files that settings name."""

from __future__ import annotations

from pathlib import Path

from iscp.core.values.errors import ConfigurationError


def read_named_file(file: str, setting: str, bytes_max: int) -> bytes:
    """Return what a file holds, of a larger one `bytes_max` + 1 bytes. Raises ConfigurationError on the setting."""
    try:
        with Path(file).open("rb") as opened:
            return opened.read(bytes_max + 1)
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read ({error.strerror})", about=setting, remedy="Name a file that exists"
        ) from error
