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
    """Jobs were checked, and one is not fresh."""
    DEAD_LETTERS = 6
    """A run has brought all jobs up to date, and rows of one are left out of its target."""
    INTERRUPTED = 130
    """Ctrl-C ended the command, as it does in shells: 128 and the number of SIGINT."""
