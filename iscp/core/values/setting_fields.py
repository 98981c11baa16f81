"""Describe a setting besides its name and type, in the metadata of its dataclass field."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def about(text: str, *, least: float | None = None, above: float | None = None) -> dict[str, Any]:
    """Return the metadata of a setting: a sentence, and bounds (`least` inclusive, `above` exclusive)."""
    return {"about": text, "least": least, "above": above}


def setting(default: Any, text: str, *, least: float | None = None, above: float | None = None) -> Any:
    """Return a field with `default`, and the metadata of `about`."""
    return field(default=default, metadata=about(text, least=least, above=above))
