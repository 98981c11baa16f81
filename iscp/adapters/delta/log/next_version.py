"""Commits at exactly the next version, of which no answer is believed: what counts is what the log shows.

A writer puts a commit behind the last version that it knows, never rebased. Its answer may be lost, and another writer
may have been first: so it searches for its own commit, by the id in it. Old commit files are cleaned away, and a writer
that slept so long finds a version free that was taken once: its put-if-absent succeeds, far behind the log's end. So a
commit counts only if the log goes on from it.
"""

from __future__ import annotations

from collections.abc import Iterator

from iscp.adapters.delta.log.commits import Commit, commit_stamp, newest_version, read_commit


def commits_after(uri: str, version: int) -> Iterator[Commit]:
    """Yield the commits behind `version`, up to the first that is not there. Raises StorageError."""
    while (commit := read_commit(uri, version := version + 1)) is not None:
        yield commit


def counts(uri: str, version: int) -> bool:
    """Return whether a commit that is there belongs to the log, and does not lie where the log was cleaned away.

    Raises StorageError, TableNotFound.
    """
    if commit_stamp(uri, version + 1) is None:
        return newest_version(uri) <= version
    # Cleaning takes the oldest: the last version it took has a successor, but nothing before it.
    return version == 0 or commit_stamp(uri, version - 1) is not None
