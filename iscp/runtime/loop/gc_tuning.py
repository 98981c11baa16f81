"""Tune how often Python collects garbage in cycles, in a process that has millions of objects for good.

Python's default is to go through all of them whenever a quarter has come on top: an owner that loads a hundred thousand
jobs spent half of its time on that. Objects that are not in a cycle are freed at once as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""New objects after which Python's collector visits the youngest ones."""

OLDER_AFTER, OLDEST_AFTER = 50, 20
"""Collections of one generation until the next is collected too."""


def collect_rarely() -> None:
    """Collect rarely, for the rest of the process."""
    gc.collect()
    gc.set_threshold(YOUNG_OBJECTS, OLDER_AFTER, OLDEST_AFTER)


@contextmanager
def no_collection() -> Iterator[None]:
    """While objects come that are to stay; they are old at its end, without a visit to each of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation
        if enabled:
            gc.enable()
