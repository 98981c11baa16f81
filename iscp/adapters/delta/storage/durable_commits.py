"""The commit files of logs that are written here: what is acknowledged outlives a power loss too, not only the process.

After an fsync that failed another one of the same pages proves nothing: the kernel may count them as written. So the
file is replaced by a copy, whose pages and name are new. An object store makes what it takes durable by itself.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from iscp.adapters.delta.storage.files import write_beside
from iscp.adapters.delta.storage.locations import commit_name
from iscp.adapters.delta.storage.table_files import sync
from iscp.ports.system import Failpoints

_doubted: dict[Path, set[int]] = {}
"""Versions of each log that can be seen and may be lost, whoever in this process has written them: nothing that lies
behind them is acknowledged either."""


class DurableCommits:
    """Makes the commits of the table at `path` outlive a power loss; None: it is not local, and nothing is done.

    The failpoints of its syncs are `NAME.sync` and `NAME.rewrite`.
    """

    def __init__(self, path: Path | None, failpoints: Failpoints, name: str = "log") -> None:
        self._log = path / "_delta_log" if path is not None else None
        self._failpoints = failpoints
        self._name = name

    def sync(self, version: int, *, content: bool = True) -> None:
        """Raises OSError where it cannot be had, also by a copy. `content`: False where only the file's name is new."""
        if self._log is None:
            return
        try:
            self._failpoints.reach(f"{self._name}.sync")
            self._rewrite_doubted(self._log)
            if content:
                sync(self._log / commit_name(version))
            sync(self._log)
        except FileNotFoundError:
            return  # cleaned away, far behind the log's end: the next check sees that
        except OSError:
            _doubted.setdefault(self._log, set()).add(version)
            self._rewrite_doubted(self._log)

    def rewrite(self, version: int) -> None:
        """Replace a commit's file by a copy, as nobody knows whether it was synced. Raises OSError."""
        if self._log is None:
            return
        self._failpoints.reach(f"{self._name}.rewrite")
        with suppress(FileNotFoundError):  # a checkpoint has made it unneeded
            _replace_by_copy(self._log / commit_name(version))

    def _rewrite_doubted(self, log: Path) -> None:
        doubted = _doubted.get(log, set())
        for version in sorted(doubted):
            self.rewrite(version)
            doubted.discard(version)


def _replace_by_copy(path: Path) -> None:
    """Put a copy in the file's place that outlives a power loss. Raises OSError."""
    with write_beside(str(path), path.read_bytes()) as hidden:
        os.replace(hidden, path)
    sync(path.parent)
