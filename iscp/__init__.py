"""Intra-system change propagation for the lakehouse."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from iscp import aio, changefeed, errors, types, views
    from iscp.client.admin_client import Client
    from iscp.index.search.search_library import search, search_frame
    from iscp.lake.local_lake import Lake, LocalJob, local
    from iscp.spark.given_spark import spark_conf, spark_jar

__all__ = [
    "Client",
    "Lake",
    "LocalJob",
    "__version__",
    "aio",
    "changefeed",
    "errors",
    "local",
    "search",
    "search_frame",
    "spark_conf",
    "spark_jar",
    "types",
    "views",
]

_PLACES = {
    "Client": "iscp.client.admin_client",
    "Lake": "iscp.lake.local_lake",
    "LocalJob": "iscp.lake.local_lake",
    "local": "iscp.lake.local_lake",
    "search": "iscp.index.search.search_library",
    "search_frame": "iscp.index.search.search_library",
    "spark_conf": "iscp.spark.given_spark",
    "spark_jar": "iscp.spark.given_spark",
}
"""All others are packages."""


def __getattr__(name: str) -> Any:
    # Loaded at the first use: who wants one of them is not to wait for the others.
    if name not in __all__:
        raise AttributeError(f"module 'iscp' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name) if name in _PLACES else import_module(f"iscp.{name}")


def __dir__() -> list[str]:
    return __all__
