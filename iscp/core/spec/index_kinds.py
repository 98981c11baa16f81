"""The kinds of jobs whose targets are indexes."""

from __future__ import annotations

INDEX_KINDS = ("fulltext", "vector", "search")
"""The kinds of consumers that maintain an index: of words, of vectors, and of both."""
