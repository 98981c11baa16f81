"""Refuses in a fork what needs threads of the process that it was forked from: only the one that forks is in a fork.

Libraries in Rust panic there, or wait without end for threads that are gone. So do channels of gRPC; a fork may open
others, but for asyncio.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import ClassVar

from iscp.core.values.errors import InvalidRequest


class Before(Enum):
    """Something that a process has done, after which its forks cannot do the same."""

    TABLES = "read tables"
    INDEXES = "searched indexes"
    ASYNCIO = "used a client of asyncio"
    SPARK = "started Spark"


_THREADS = {"tokio-rt-worker": Before.TABLES, "lance-cpu": Before.INDEXES, "lance_backgroun": Before.INDEXES}
"""Threads of libraries by their names on Linux, which show that a program has used these by itself."""


class _DeedsBeforeForks:
    """The deeds of this process, and those of the ones that it was forked from, with the newest of these."""

    done: ClassVar[set[Before]] = set()
    lost: ClassVar[set[Before]] = set()
    forked_from = 0


def refuse_fork(what: str, *deeds: Before) -> None:
    """Note what this process does, by `what`.

    Raises InvalidRequest if one that it was forked from has done the same.
    """
    for each in deeds:
        if each in _DeedsBeforeForks.lost:
            raise InvalidRequest(
                f"cannot be used in the process {os.getpid()}: it was forked from {_DeedsBeforeForks.forked_from}, "
                f"which had {each.value} by then",
                field=what,
                remedy="Start processes by `spawn` or `forkserver`, or do that in no process that forks",
            )
        _DeedsBeforeForks.done.add(each)


class OwnProcess:
    """The process that something was made in, which alone may use it."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()

    @property
    def is_this(self) -> bool:
        return self._pid == os.getpid()

    def require(self) -> None:
        """Raise InvalidRequest in a fork."""
        if not self.is_this:
            raise InvalidRequest(
                f"was made in the process {self._pid}, which this one ({os.getpid()}) was forked from",
                field=self._what,
                remedy="Make another one after the fork",
            )


def _note_deeds() -> None:
    _DeedsBeforeForks.forked_from = os.getpid()
    spark = sys.modules.get("pyspark")
    if getattr(getattr(spark, "SparkContext", None), "_gateway", None) is not None:
        _DeedsBeforeForks.done.add(Before.SPARK)
    with suppress(OSError):  # no Linux
        for thread in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has just ended
                if (deed := _THREADS.get((thread / "comm").read_text().strip())) is not None:
                    _DeedsBeforeForks.done.add(deed)


def _lose_deeds() -> None:
    _DeedsBeforeForks.lost |= _DeedsBeforeForks.done
    _DeedsBeforeForks.done = set()


os.register_at_fork(before=_note_deeds, after_in_child=_lose_deeds)
