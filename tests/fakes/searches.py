"""Searches in memory: a port Searching of one index for each account, and what carries searches out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from iscp.model.api.api_requests import SearchAnswer, SearchHit, SearchRequest
from iscp.model.values.errors import IscpError, no_index_at

ANSWER = SearchAnswer(
    hits=(
        SearchHit({"id": 2**60}, 2.5, {"title": "a fox", "year": 1999}, {"body": ("a <b>fox</b>",)}, "2.5 = bm25"),
        SearchHit({"id": 7}, 1.25),
    ),
    version=12,
    version_at_s=1_700_000_000.5,
    index_version=40,
    proven=True,
    cut=("fo*",),
    took_ms=1.5,
    waited_ms=0.5,
)


@dataclass
class FakeSearches:
    """Port Searching: `indexes` has the account of each index. `calls` is what was searched, `closed` how it ended."""

    indexes: dict[str, str] = field(default_factory=lambda: {"/lake/index": "acme"})
    answer: SearchAnswer | IscpError = ANSWER
    calls: list[tuple[SearchRequest, str]] = field(default_factory=list)
    closed: bool = False

    def search(self, request: SearchRequest, account: str, alive: Callable[[], bool]) -> SearchAnswer:
        owner = self.indexes.get(request.uri)
        if owner is None or account not in ("", owner):
            raise no_index_at(request.uri)
        assert alive()
        self.calls.append((request, account))
        if isinstance(self.answer, IscpError):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeIndexes:
    """Port IndexSearch: `requests` are those that came, on behalf of `accounts`; they wait while `held` is clear."""

    answer: SearchAnswer | Exception = ANSWER
    requests: list[SearchRequest] = field(default_factory=list)
    accounts: list[str] = field(default_factory=list)
    held: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.held.set()

    def search(self, request: SearchRequest, account: str) -> SearchAnswer:
        self.requests.append(request)
        self.accounts.append(account)
        assert self.held.wait(30.0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer
