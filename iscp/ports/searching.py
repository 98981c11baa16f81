"""The ports behind the gRPC service `Search`: who answers searches, and who carries them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from iscp.core.api.search_views import SearchAnswer, SearchRequest

IndexSearch = Callable[[SearchRequest, str], SearchAnswer]
"""Search the index at the request's place, on behalf of the account whose it is. Raises IscpError."""


class Searching(Protocol):
    def search(self, request: SearchRequest, account: str, alive: Callable[[], bool]) -> SearchAnswer:
        """Return the answer of an index that a job of the account (empty: any account) maintains.

        `alive` says whether the caller still waits. Raises TableNotFound where there is no such job, whether or not
        there is anything at the place; InvalidRequest for a search that the index cannot answer; TimedOut where the
        index does not reach `min_version` in time, or the search takes too long; JobFailed, NotOwner, Unavailable.
        """

    def close(self) -> None:
        """Begin no further search."""
