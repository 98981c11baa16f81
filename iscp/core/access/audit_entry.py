"""One call that changed something, or was to: who made it, from where, what it named, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A call, in one of the accounts that it concerned (empty: all).

    `at_s`: Unix seconds, when it ended. `what`: JSON, the things that it named, never specs, tokens or anything else
    that may hold a secret. `result`: gRPC's status; `error_code`: 0, or that of the error.
    """

    at_s: float
    node_id: str
    account: str
    caller_account: str
    caller_role: str
    caller: str
    known_by: str
    peer: str
    method: str
    what: str
    request_id: str
    result: str
    error_code: int = 0

    @property
    def chars(self) -> int:
        """Return the number of characters of all its texts."""
        return sum(len(value) for name in self.__slots__ if isinstance(value := getattr(self, name), str))


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A filter of audit entries, in which empty fields do not filter. `since_s` is in Unix seconds; `limit` selects the
    newest.
    """

    account: str = ""
    since_s: float = 0.0
    method: str = ""
    limit: int = 1_000
