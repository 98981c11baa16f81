"""How long steps take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def timed(report: list[str], what: str) -> Iterator[None]:
    """A line for it, once it is done."""
    begun_s = time.monotonic()
    yield
    report.append(f"{what}: {time.monotonic() - begun_s:.1f} s")
