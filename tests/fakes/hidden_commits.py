"""Commits that a listing of their log does not show."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iscp.delta.log import table_opening


def commit(uri: str, version: int) -> Path:
    return Path(uri, "_delta_log", f"{version:020}.json")


class _ShownWhenDoubted(logging.Handler):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path, self._aside, self.doubts = path, path.with_suffix(".aside"), 0
        path.rename(self._aside)

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "listing.doubted":
            self.doubts += 1
            if self.doubts == 1:
                self._aside.rename(self._path)


@contextmanager
def shown_when_doubted(uri: str, version: int) -> Iterator[_ShownWhenDoubted]:
    """Not there for the first listing, as where others write meanwhile, and there for the next."""
    hidden, level = _ShownWhenDoubted(commit(uri, version)), table_opening.log.level
    table_opening.log.addHandler(hidden)
    table_opening.log.setLevel(logging.INFO)
    try:
        yield hidden
    finally:
        table_opening.log.removeHandler(hidden)
        table_opening.log.setLevel(level)
