"""The Python client for asyncio, with the methods of `iscp.Client` (docs/api.md)."""

from iscp.aio.async_client import AsyncClient as Client

__all__ = ["Client"]
