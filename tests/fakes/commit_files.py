"""The commit files of local tables, for tests that read, damage or remove them."""

from __future__ import annotations

from pathlib import Path

from iscp.delta.log.commits import commit_file


def commit_path(uri: str, version: int) -> Path:
    """The commit file of a local table."""
    return Path(commit_file(uri, version))
