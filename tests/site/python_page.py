"""The pages of the Python packages that users import: what each has in `__all__`, which mkdocstrings describes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from iscp.client.service_clients import AccessClient, BuildClient, OperatorClient

PACKAGES: Mapping[str, str] = {
    "iscp": "The client and the searches. [Python](../../python.md) explains them in use.",
    "iscp.aio": "The client for asyncio.",
    "iscp.client": "What calls of the client take.",
    "iscp.errors": "What all of them raise. [Errors](../errors.md) has the codes and messages.",
    "iscp.types": "What clients return and take, and what consumers and triggers of your own are given.",
    "iscp.changefeed": "Changefeeds as a library. [Changefeeds](../../changefeed.md) explains it in use.",
    "iscp.views": "Queries that follow the changes of their tables, on any SparkSession.",
    "iscp.index.embedding": "What embedders of your own use. [Embedders](../../embedders.md) has an example.",
    "iscp.consumers.custom": "What consumers of your own use. [Consumers](../../consumers.md) has examples.",
}
"""The public packages, each with what it is for."""

_ALONE = frozenset({"iscp.errors", "iscp.types"})
"""Packages whose classes have so much in common that it is shown at their base class alone."""

_PARTS: Mapping[str, tuple[tuple[str, type], ...]] = {
    "iscp": (
        ("Client.operator", OperatorClient),
        ("Client.builds", BuildClient),
        ("Client.access", AccessClient),
    )
}
"""What users have without importing it, by its package: what it is called there, and its class."""


def page_path(package: str) -> str:
    """Return the page of a package, on the site."""
    return f"reference/python/{package.replace('.', '-')}.md"


def pages() -> dict[str, str]:
    """Return all pages by their paths; what several packages have is described in the first of them."""
    described: dict[int, str] = {}
    return {page_path(package): "\n".join(_page(package, described)) for package in PACKAGES}


def _page(package: str, described: dict[int, str]) -> Iterator[str]:
    yield from (f"# {package}", "", PACKAGES[package], "")
    elsewhere = []
    for name, value in public(package):
        home = described.setdefault(id(value), f"{package}.{name}")
        if home == f"{package}.{name}":
            yield from _described(value, home, package not in _ALONE)
        else:
            elsewhere.append(f"`{name}` ([`{home}`]({page_path(home.rpartition('.')[0]).rpartition('/')[2]}))")
    for name, value in _PARTS.get(package, ()):
        yield from _described(value, f"{package}.{name}", True)
    if elsewhere:
        yield from ("## Also here", "", ", ".join(elsewhere) + ".", "")


def _described(value: Any, heading: str, inherited: bool) -> Iterator[str]:
    """Yield what has mkdocstrings describe a class or a function, whether with what it inherits."""
    yield from (f"::: {value.__module__}.{value.__qualname__}", "    options:", f'      heading: "{heading}"')
    yield from (f"      inherited_members: {str(inherited).lower()}", "")


def public(package: str) -> Iterator[tuple[str, Any]]:
    """Yield the classes and functions of a package that users may import, by their names."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None)
    if names is None:
        names = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == package]
    for name in names:
        value = getattr(module, name)
        if (inspect.isclass(value) or inspect.isfunction(value)) and not name.startswith("_"):
            yield name, value
