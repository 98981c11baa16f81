"""The memory that this process has."""

from __future__ import annotations

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Return the resident memory of this process, without its children's."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
