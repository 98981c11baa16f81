"""The composition root: the one place that knows which adapter is behind which port."""

from iscp.bootstrap.run import run_node

__all__ = ["run_node"]
