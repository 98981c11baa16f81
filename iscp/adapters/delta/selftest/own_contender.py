"""Takes part in a race of commits from within the node's own process, by delta-rs."""

from __future__ import annotations

from deltalake import DeltaTable

from iscp.adapters.delta.selftest.commit_race import commit_next


class OwnContender:
    """Commits through delta-rs in this process, to a table that is there; `start` waits for the end."""

    name = "this process"

    def __init__(self, table: str) -> None:
        self._handle = DeltaTable(table)
        self._version = -1
        self._won = False

    def prepare(self, version: int) -> None:
        self._version = version

    def start(self) -> None:
        """Raises OSError or DeltaError if the commit failed for another reason than that the version is there."""
        self._won = commit_next(self._handle, self.name, self._version)

    def result(self) -> bool:
        self._handle.update_incremental()
        return self._won
