"""Intra-system change propagation for the lakehouse."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from iscp.client.admin_client import Client
    from iscp.index.search.search_library import search, search_frame
    from iscp.lake.local_lake import local

__all__ = ["Client", "__version__", "local", "search", "search_frame"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a node and `iscp-admin --help` need neither client nor searches.
    if name == "Client":
        from iscp.client.admin_client import Client

        return Client
    if name == "local":
        from iscp.lake.local_lake import local

        return local
    if name in ("search", "search_frame"):
        from iscp.index.search import search_library

        return getattr(search_library, name)
    raise AttributeError(f"module 'iscp' has no attribute {name!r}")
