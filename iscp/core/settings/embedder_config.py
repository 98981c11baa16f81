"""Settings say which embedders turn texts into vectors. See docs/embedders.md.

Jobs name an embedder, and nothing else of it: URLs, files and models are the node's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from iscp.core.values.setting_fields import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedderConfig:
    """Jobs may name an embedder that is defined: an entry point of `iscp.embedders` (`kind`) with its options.

    A number that is 0 and a text that is empty leave the choice to the kind. `embedder_faults` says which options a
    kind has. `options` are those of kinds that are not iscp's own.
    """

    kind: str = ""
    url: str = ""
    model: str = ""
    path: str = ""
    key_file: str = ""
    dimension: int = 0
    chars_max: int = 0
    batch: int = 0
    threads: int = 0
    requests_per_s: float = 0.0
    timeout_s: float = 0.0
    revision: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingConfig:
    """All embedders share these settings."""

    allow: tuple[str, ...] = setting(
        (), "Entry points of `iscp.embedders` that may be used in addition to iscp's own, as `kind` or by jobs"
    )
    cache_mb: int = setting(64, "Memory for vectors of texts that were embedded before; 0: none", least=0)
