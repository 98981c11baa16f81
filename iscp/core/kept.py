"""The name that net changes have in common."""

from __future__ import annotations

OP = "_iscp_op"
"""The column that holds a net change's operation (see Changes in `iscp/ports/pipeline.py`)."""
