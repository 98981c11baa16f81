"""What is known of a setting besides its name and type, kept in the metadata of its dataclass field."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def about(text: str, *, least: float | None = None, above: float | None = None) -> dict[str, Any]:
    """What is known of a setting besides its type: a sentence, and bounds (`least` inclusive, `above` exclusive)."""
    return {"about": text, "least": least, "above": above}


def setting(default: Any, text: str, *, least: float | None = None, above: float | None = None) -> Any:
    """A field with `default`, and what `about` says of it."""
    return field(default=default, metadata=about(text, least=least, above=above))
