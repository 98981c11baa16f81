"""Checkpoints of the logs that are written here, made after those who wait for a commit were notified.

Delta makes one within every tenth commit, which then ends seconds after it can be read. So a table that is made here
leaves it to others only after many commits: they are to find a short log as well, should they go on with the table.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from iscp.adapters.delta.log.table_opening import make_checkpoint, open_delta

log = logging.getLogger(__name__)

COMMITS = 10
"""Commits from one checkpoint of a target's log to the next."""

COMMITS_OF_OTHERS = 100
"""The same for whoever else writes to a target, and for Spark when it writes on our behalf."""

PROPERTIES = {"delta.checkpointInterval": str(COMMITS_OF_OTHERS)}
"""The properties of a target."""


class Checkpoints:
    """Makes checkpoints of one table's log, after each `every`th version, if that is a commit of one's own; only while
    the table has the properties `only_with`.
    """

    def __init__(self, uri: str, every: int, only_with: Mapping[str, str] = MappingProxyType({})) -> None:
        self._uri = uri
        self._every = every
        self._only_with = only_with
        self._due = False

    def note_commit(self, version: int) -> None:
        """Note that one's own commit became that version."""
        self._due |= version > 0 and version % self._every == 0

    def make(self) -> None:
        """Make a checkpoint of the newest version and clean the log, if one is due.

        Raises nothing: that it fails does no harm but to those who open the table.
        """
        if not self._due:
            return
        self._due = False  # also if it fails: tried again when the next one is due, not after every commit
        try:
            table = open_delta(self._uri)
            if self._only_with.items() <= table.metadata().configuration.items():
                make_checkpoint(self._uri, table)
                table.cleanup_metadata()
        except Exception as error:  # noqa: BLE001  (what was committed is not to look as if it were not)
            log.warning("checkpoint.failed", extra={"table": self._uri, "reason": str(error)})
