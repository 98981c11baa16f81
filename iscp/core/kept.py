"""What a job's filter makes of the source's net changes, as SQL."""

from __future__ import annotations

OP = "_iscp_op"
"""The column that holds a net change's operation (see Changes in `iscp/ports/pipeline.py`)."""


def kept_op(where: str) -> str:
    """The operation that is left of a net change; null: none.

    A row that the filter refuses is deleted if it may have been there, and ignored if it is new.
    """
    # Lines of its own: a filter may end with a comment.
    return f"CASE WHEN coalesce((\n{where}\n), false) OR {OP} = 'd' THEN {OP} WHEN {OP} = 'u' THEN 'd' END"
