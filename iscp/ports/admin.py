"""The ports behind the gRPC services that users and operators call, and those by which calls are authorized and
recorded: authenticators, tokens, the keys of a provider of OpenID Connect, and the audit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from iscp.model.access.authorization import AuditEntry, AuditQuery, TokenBook, TokenRecord
from iscp.model.access.service_table import Credentials, Principal, Role, Rule
from iscp.model.api.api_requests import (
    ChangeOutcome,
    ChangePage,
    CheckedJob,
    ClusterView,
    ConsumerInfo,
    EventView,
    ExplainRequest,
    FeedRequest,
    JobChange,
    JobFilter,
    JobName,
    JobView,
    LeftOutRows,
    LogPage,
    LogPlace,
    LogQuery,
    NodeVerb,
    PlacedShard,
    RegisterRequest,
    RegisterResult,
    ResyncRequest,
    SearchAnswer,
    SearchRequest,
    ShardVerb,
    UpdateRequest,
)
from iscp.model.build.build_progress import BuildView
from iscp.model.job.iteration import HistoryEntry
from iscp.model.job.job_row import JobRow
from iscp.model.job.start_rule import VerifyReport
from iscp.model.query_plan import QueryExplanation
from iscp.model.values.errors import NotAuthenticated

# --- the service `Admin` ----------------------------------------------------------------------------------------------
# The API is reference 1's, with an account everywhere.


class AdminService(Protocol):
    """All methods raise IscpError: InvalidRequest before anything is written, NotOwner, Unavailable, TimedOut."""

    def register(self, requests: Sequence[RegisterRequest]) -> list[RegisterResult]:
        """Register all or none: every request is checked before the first is written. Returns once they are in the
        log.
        """

    def change(self, changes: Sequence[JobChange]) -> list[ChangeOutcome]:
        """Make each change for itself; the outcomes run parallel to `changes`, and are in the log.

        A temporary error is raised for all, as OutcomeUnknown where some changes were made: who retries with the same
        request ids gets their first answers.
        """

    def check(self, requests: Sequence[RegisterRequest]) -> list[CheckedJob]:
        """Check each for itself, on top of those before it; nothing is written."""

    def resync(self, request: ResyncRequest) -> RegisterResult:
        """Resync the job, and return its new registration, which is in the log. Raises JobNotFound; Conflict if it was
        changed meanwhile.
        """

    def update(self, requests: Sequence[UpdateRequest]) -> list[ChangeOutcome]:
        """Update specs, with outcomes as `change` has them: True if a spec has changed, False if it was so already, an
        error if it was refused.
        """

    def list_jobs(self, wanted: JobFilter) -> list[JobView]: ...

    def count_jobs(self, wanted: JobFilter) -> int: ...

    def status(self, job: JobName) -> JobView:
        """Raises JobNotFound."""

    def wait(
        self,
        job: JobName,
        version: int | None,
        timeout_s: float,
        alive: Callable[[], bool],
        versions: Mapping[str, int] | None = None,
    ) -> JobView:
        """Return once the job's watermark is at `version` (None: the table's newest at the call).

        `versions`: of further tables that it reads, by name or URI; of those that are left out the newest at the call.
        Given up, within about a second, when `alive` says that nobody waits for the answer any more. Raises
        TimedOut, JobFailed (failed for good, paused, or dropped meanwhile), JobNotFound.
        """

    def verify(self, job: JobName, repair: bool, timeout_s: float, alive: Callable[[], bool]) -> VerifyReport:
        """Compare the job's target with its source at its watermark, after whatever runs of the job.

        Given up, and the work with it, after `timeout_s` or when `alive` says that nobody waits. Raises TimedOut,
        JobFailed (not built, failed; paused and `repair`), PermanentError (it cannot be known), JobNotFound.
        """

    def explain(self, request: ExplainRequest) -> QueryExplanation:
        """Explain the query. Raises InvalidRequest if the query cannot be maintained, or the consumer maintains none;
        JobNotFound.
        """

    def dead_letters(self, job: JobName, limit: int) -> LeftOutRows:
        """Return up to `limit` of the rows that the job leaves out of its target, in no order.

        Raises JobNotFound; TimedOut or QueueFull where the storage takes too long, PermanentError for rows that are not
        read here, StorageError.
        """

    def history(self, job: JobName, limit: int) -> list[HistoryEntry]:
        """Return the history, newest first."""

    def notify(self, table: str, account: str = "") -> int:
        """Note that this table has just changed, and return how many jobs read it, those on other tables too.

        Jobs of the account count, or (empty) of all. Raises TableNotFound if there are none.
        """

    def cluster(self) -> ClusterView: ...


# --- the services `Operator` and `Builds` -----------------------------------------------------------------------------
# What operators want of nodes, shards and builds.


class OperatorService(Protocol):
    """All methods raise IscpError: InvalidRequest before anything is written, NotOwner, Unavailable."""

    def change_node(self, verb: NodeVerb, node_id: str) -> tuple[bool, int]:
        """Change a node, and return whether anything has changed, and how many shards the node has.

        Raises InvalidRequest for a node that nobody knows, and for a drain that would leave no node.
        """

    def change_shards(self, verb: ShardVerb, table: str, range_id: int, node_id: str) -> int:
        """Change the table's shards (`range_id` 0: all), and return how many of them were not so already.

        Raises TableNotFound; InvalidRequest for a node that is unknown, or that takes no shards.
        """

    def reshard(self, merge: bool, table: str, range_id: int, request_id: str) -> int:
        """Split ranges of the table (0: all), or merge pairs of them (0: the smallest), and return how many it has
        then.

        A request repeated under the same `request_id` is done once. Raises TableNotFound; InvalidRequest if the table
        has a job that cannot be split, or there is no such range.
        """

    def rebalance(self, dry_run: bool) -> list[PlacedShard]:
        """Return what is elsewhere than it should be, which begins to move unless `dry_run`."""

    def placement(self, table: str, account: str = "") -> list[PlacedShard]:
        """Return the shards of a table, or (empty) of all, with jobs of the account, or (empty) any. Raises
        TableNotFound.
        """

    def events(
        self,
        owner_rev: int,
        number: int,
        wait_s: float,
        alive: Callable[[], bool],
        table: str = "",
        account: str = "",
    ) -> list[EventView]:
        """Return the events that came after that number of that term, in later terms too; waits until there is one.

        If `table` is given, only decisions on its shards are returned, and if `account` is given, those on tables that
        have jobs of it. Raises TableNotFound.
        """

    def node_logs(self, node_id: str, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Return lines of the node's log, after the place that `after` has for it. Raises InvalidRequest if there is no
        such node.
        """

    def job_logs(self, job: JobName, query: LogQuery, after: Mapping[str, LogPlace]) -> list[LogPage]:
        """Return the lines of all nodes that are about the job; a page for each node. Raises JobNotFound,
        TableNotFound.
        """

    def consumers(self) -> Sequence[ConsumerInfo]:
        """Return the kinds of consumer that are allowed, by their names. No code of theirs is run for that."""


class BuildAdmin(Protocol):
    """All raise IscpError: InvalidRequest and TableNotFound before anything is changed, NotOwner, Unavailable."""

    def builds(self, table: str, account: str = "") -> list[BuildView]:
        """Return the builds of a table, or (empty) of all, and of an account, or (empty) of all; none if there are
        none.
        """

    def abort(self, job: JobName) -> int:
        """Pause the job, or (an empty name) all jobs of the table that are being built, and return how many tasks end
        by that.

        Ranges that are staged already are retained, for when the job is resumed. Raises JobNotFound; InvalidRequest if
        nothing is left to be built.
        """

    def prioritize(self, table: str) -> bool:
        """Build the table before all others that wait; False where it is its turn already, or its turn is next.

        Raises InvalidRequest where nothing of it is to be built.
        """

    def split(self, table: str, range_id: int) -> int:
        """Cut a range of the builds of the table in two, or (0) all; how many are still to be built then.

        Raises InvalidRequest where there is no such range, or it cannot be cut.
        """

    def merge(self, table: str, range_id: int) -> int:
        """Put a range together with its other half, or (0) all pairs of the smallest; how many there are then.

        Raises InvalidRequest where the two are not both still to be built.
        """


# --- the services `Search` and `Feeds` --------------------------------------------------------------------------------
# Who answers for what targets hold, and what reads it.

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


# --- the one place where calls are authorized -------------------------------------------------------------------------
# Who calls, and whether they may.


class Authenticator(Protocol):
    def identify(self, credentials: Credentials) -> Principal | None:
        """Return who shows these credentials; None if none are shown.

        Raises NotAuthenticated if what is shown is not good (any more), Unavailable if that cannot be known.
        """


class Authorizer(Protocol):
    def rule(self, method: str) -> Rule | None:
        """Return what is known of a method of gRPC, by its full name; None if it is refused."""

    def authorize(self, principal: Principal | None, method: str, accounts: Collection[str], everybody: bool) -> None:
        """Return if the call may be made. `accounts`: those that it names; `everybody`: it concerns all there are.

        Raises NotAuthenticated, NotAuthorized; ForeignAccount where it names another account than the caller's.
        """


# --- callers who still wait -------------------------------------------------------------------------------------------
# What a thread does is canceled with the call that it is done for.

_WANTED: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


@contextmanager
def want_while(wanted: Callable[[], bool]) -> Iterator[None]:
    """Mark what this thread does within as of use for as long as `wanted` says so."""
    token = _WANTED.set(wanted)
    try:
        yield
    finally:
        _WANTED.reset(token)


def still_wanted() -> bool:
    return _WANTED.get()()


# --- public keys of a provider of OpenID Connect ----------------------------------------------------------------------


class UnknownKey(NotAuthenticated):
    """A token names a key that is not among those that are known; the provider may have it since."""


class VerifyingKeys(Protocol):
    """The keys that a provider had at one moment. Deciding by them needs neither I/O nor a clock."""

    @property
    def key_ids(self) -> Collection[str]: ...

    def verify(self, token: str) -> Mapping[str, object]:
        """Return the claims of a token that one of the keys has signed, for the audience and by the issuer that are
        expected.

        Nothing untrusted in the token decides anything before that. Raises NotAuthenticated, UnknownKey.
        """


class KeySource(Protocol):
    def fetch(self) -> VerifyingKeys:
        """Fetch the keys that the provider has now, within a bounded time. Raises Unavailable."""


class TokenProvider(Protocol):
    """A provider's tokens, as one node can verify them."""

    def identify(self, token: str) -> Principal:
        """Raises NotAuthenticated; Unavailable where it cannot be said, as the keys are not known."""


# --- what access control stores outside the nodes ---------------------------------------------------------------------
# Tokens, and who changed what.


class TokenStore(Protocol):
    """Raises Unavailable, OutcomeUnknown."""

    def create(self, record: TokenRecord) -> bool:
        """False: there is one of this id. Raises InvalidRequest where there are as many as there may be."""

    def revoke(self, token_id: str, account: str) -> bool:
        """False: there is no such token, or it is another account's; an empty account is any."""

    def records(self) -> list[TokenRecord]:
        """Return all that can be read, also those that have ended."""


class TokenView(Protocol):
    """One node's knowledge of the tokens, at any time."""

    @property
    def book(self) -> TokenBook: ...

    @property
    def age_s(self) -> float:
        """Return the seconds since which a change may not be known here; infinite before anything is."""


class AuditLog(Protocol):
    def append(self, entries: Sequence[AuditEntry]) -> None:
        """Raises StorageError, and InvalidRequest for what it cannot hold."""

    def read(self, query: AuditQuery) -> list[AuditEntry]:
        """Return the entries, newest first. Raises StorageError."""


class AuditSink(Protocol):
    """Takes entries in, to be written soon."""

    def add(self, entries: Sequence[AuditEntry]) -> None:
        """Add entries; this never waits, and never raises."""


class AccessService(Protocol):
    """The port behind the gRPC service `Access`. Raises InvalidRequest, Unavailable, OutcomeUnknown, StorageError."""

    def create_token(
        self, account: str, role: Role, ttl_s: float, note: str, by: Principal | None
    ) -> tuple[str, TokenRecord]:
        """Create a token, and return it, which nobody can have again, and what is stored of it."""

    def tokens(self, account: str) -> list[TokenRecord]:
        """Return the tokens of an account, or (empty) of all; the newest first."""

    def revoke_token(self, token_id: str, account: str) -> bool:
        """Revoke a token as TokenStore does."""

    def audit(self, query: AuditQuery) -> list[AuditEntry]: ...


RandomHex = Callable[[int], str]
"""Gives so many random bytes in hexadecimal digits; nobody can foresee them."""
