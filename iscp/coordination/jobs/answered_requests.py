"""Requests that were answered, so that one which is repeated gets the answer that it has missed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice

REQUESTS_MAX = 250_000
"""Request ids whose answers are remembered; the oldest are forgotten, and count as new when they are repeated."""


class AnsweredRequests:
    """Request ids, oldest first, with the job_ids that they were about."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._job_ids = dict(known)

    def get(self, request_id: str) -> str | None:
        return self._job_ids.get(request_id)

    def add(self, answered: Mapping[str, str]) -> None:
        self._job_ids |= answered
        for request_id in list(islice(self._job_ids, max(0, len(self._job_ids) - REQUESTS_MAX))):
            del self._job_ids[request_id]

    def forget(self, job_ids: Collection[str]) -> None:
        """Those about registrations that nobody remembers any more."""
        self._job_ids = {request: job_id for request, job_id in self._job_ids.items() if job_id not in job_ids}
