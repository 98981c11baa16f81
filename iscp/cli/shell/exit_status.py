"""The exit statuses of `iscp-admin` and what they mean (docs/operations.md)."""

from __future__ import annotations

from enum import IntEnum


class ExitStatus(IntEnum):
    FAILED = 1
    WRONG_USAGE = 2
    OUT_OF_TIME = 3
    DIFFERS = 4
    """A comparison was made, and source and target are not equal."""
    NOT_FRESH = 5
    """Jobs were checked, and one is late or failed."""
    INTERRUPTED = 130
    """Ctrl-C ended the command, as it does in shells: 128 and the number of SIGINT."""
