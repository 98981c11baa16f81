"""The pages of the site that are made of the code when it is built, and lie nowhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests import limits


def _limits() -> str:
    return limits.document(limits.sources())


GENERATED: Mapping[str, Callable[[], str]] = {"limits.md": _limits}
"""What writes each page, by its path on the site."""
