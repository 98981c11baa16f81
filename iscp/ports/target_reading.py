"""The ports behind the gRPC services `Search` and `Feeds`: who answers for what targets hold, and what reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from iscp.core.api.api_views import JobView
from iscp.core.api.feed_views import ChangePage, FeedRequest
from iscp.core.api.search_views import SearchAnswer, SearchRequest
from iscp.core.job.job_row import JobRow

IndexSearch = Callable[[SearchRequest, str], SearchAnswer]
"""Search the index at the request's place, on behalf of the account whose it is. Raises IscpError."""


FeedPages = Callable[[JobRow, str, int], ChangePage]
"""Return so many changes of the job's feed behind a cursor's text, at the most, as of now.

Raises TableNotFound where there is no feed, CursorBehind, InvalidRequest, StorageError, PermanentError.
"""


class Searching(Protocol):
    def search(self, request: SearchRequest, account: str, alive: Callable[[], bool]) -> SearchAnswer:
        """Return the answer of an index that a job of the account (empty: any account) maintains.

        `alive` says whether the caller still waits. Raises TableNotFound where there is no such job, whether or not
        there is anything at the place; InvalidRequest for a search that the index cannot answer; TimedOut where the
        index does not reach `min_version` in time, or the search takes too long; JobFailed, NotOwner, Unavailable.
        """

    def close(self) -> None:
        """Begin no further search."""


class FeedReading(Protocol):
    def read(self, job: JobView, request: FeedRequest, alive: Callable[[], bool]) -> ChangePage:
        """Return the next changes of the feed that the job writes; none where none came in time.

        `alive` says whether the caller still waits. Raises InvalidRequest for a job that writes no feed, for a cursor
        that is none of it, and for a target outside of the account's roots; CursorBehind where what comes next was
        purged; TableNotFound, TimedOut, NodeKilled, StorageError, PermanentError, Unavailable.
        """

    def close(self) -> None:
        """Begin no further read, and end the waits."""
