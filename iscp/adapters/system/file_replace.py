"""Files that readers find as they were or as they are to be, and never in between."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file, whole or not at all, whoever else writes it; `mode`: who may read it. Raises OSError."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem}-", delete=False) as scratch:
        scratch.write(content)
        os.fchmod(scratch.fileno(), mode)
    os.replace(scratch.name, path)
