"""Texts become vectors: what embedders of other people's making use (docs/embedders.md)."""

from typing import TYPE_CHECKING, Any

from iscp.model.values.untrusted_values import import_name

if TYPE_CHECKING:
    from iscp.index.embedding.embedder_registry import Embedder, EmbedderBusy, TextsRefusedError
    from iscp.model.settings.embedder_config import EmbedderConfig

__all__ = ["Embedder", "EmbedderBusy", "EmbedderConfig", "TextsRefusedError"]


def __getattr__(name: str) -> Any:
    if name == "EmbedderConfig":
        return import_name("iscp.index.embedding", name, "iscp.model.settings.embedder_config")
    if name in __all__:
        return import_name("iscp.index.embedding", name, "iscp.index.embedding.embedder_registry")
    raise AttributeError(f"module 'iscp.index.embedding' has no attribute {name!r}")
