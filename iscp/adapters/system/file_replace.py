"""Files that readers find as they were or as they are to be, and never in between, and directories of one user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def private_directory(path: Path) -> Path:
    """Make a directory, with those above it, that only its user may enter; one of this user's that exists becomes so.

    Raises OSError.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & 0o077:
        path.chmod(0o700)
    return path


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file, whole or not at all, whoever else writes it; `mode`: who may read it. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem}-", delete=False) as scratch:
        scratch.write(content)
        os.fchmod(scratch.fileno(), mode)
    os.replace(scratch.name, path)
