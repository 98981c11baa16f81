"""Requests that were answered, so that one which is repeated gets the answer that it has missed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

REQUESTS_MAX = 250_000
"""Request ids whose answers are remembered; the oldest are forgotten, and count as new when they are repeated."""

RequestKey = tuple[str, str]
"""The account of the job that a request is about, and the request's id: clients of one account do not know those of
another, and both may call a request `nightly-2026-11-27`."""


class AnsweredRequests:
    """Requests, oldest first, with the job_ids that they were about."""

    def __init__(self, known: Mapping[RequestKey, str]) -> None:
        self._job_ids = dict(known)

    def get(self, request: RequestKey) -> str | None:
        return self._job_ids.get(request)

    def add(self, answered: Mapping[RequestKey, str]) -> None:
        self._job_ids |= answered
        for request in list(islice(self._job_ids, max(0, len(self._job_ids) - REQUESTS_MAX))):
            del self._job_ids[request]

    def forget(self, job_ids: Collection[str]) -> None:
        """Forget the requests about registrations that nobody remembers any more."""
        self._job_ids = {request: job_id for request, job_id in self._job_ids.items() if job_id not in job_ids}
