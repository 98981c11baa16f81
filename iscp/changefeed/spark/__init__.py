"""Changefeeds in Spark (docs/changefeed.md)."""

from typing import TYPE_CHECKING, Any

from iscp.model.values.untrusted_values import import_name

if TYPE_CHECKING:
    from iscp.changefeed.spark.stream import read, register

__all__ = ["read", "register"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: an executor that reads a part of a feed needs neither.
    if name in __all__:
        return import_name("iscp.changefeed.spark", name, "iscp.changefeed.spark.stream")
    raise AttributeError(f"module 'iscp.changefeed.spark' has no attribute {name!r}")
