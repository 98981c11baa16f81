"""Checkpoints of the logs that are written here, made when those who wait for a commit were told of it.

Delta makes one within every tenth commit, which then ends seconds after it can be read. So a table that is made here
leaves it to others only after many commits: they are to find a short log as well, should they go on with the table.
"""

from __future__ import annotations

import logging

from deltalake import DeltaTable

log = logging.getLogger(__name__)

COMMITS = 10
"""From one checkpoint of a target to the next."""

COMMITS_OF_OTHERS = 100
"""As it is for whoever else writes to a target; Spark keeps to it too when it writes for this project."""

PROPERTIES = {"delta.checkpointInterval": str(COMMITS_OF_OTHERS)}
"""Of a target."""


def make_checkpoint(uri: str, only_with: dict[str, str] | None = None) -> None:
    """Of the newest version, and clean the log; only of a table `only_with` these properties.

    Raises nothing: that it fails does no harm but to those who open the table.
    """
    try:
        table = DeltaTable(uri)
        if (only_with or {}).items() <= table.metadata().configuration.items():
            table.create_checkpoint()
            table.cleanup_metadata()
    except Exception as error:  # noqa: BLE001  (what was committed is not to look as if it were not)
        log.warning("checkpoint.failed", extra={"table": uri, "reason": str(error)})
