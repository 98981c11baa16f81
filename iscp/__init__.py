"""Intra-system change propagation for the lakehouse."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from iscp.client.admin_client import Client

__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a node and `iscp-admin --help` need no client.
    if name == "Client":
        from iscp.client.admin_client import Client

        return Client
    raise AttributeError(f"module 'iscp' has no attribute {name!r}")
