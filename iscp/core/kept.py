"""The names that what is kept of a source has in common."""

from __future__ import annotations

OP = "_iscp_op"
"""The column that holds a net change's operation (see Changes in `iscp/ports/source.py`)."""

DEAD_LETTER_SUFFIX = "_dead_letter"
"""What the name of the table has behind its target's in which rows that share a key are kept."""
