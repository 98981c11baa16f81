"""The callers that a node knows, the tokens by which they are known, and the record of what they changed.

The module has the ports Authenticator (`KnownCallers`), TokenProvider (`ProviderKeys`), AccessService (`TokenService`)
and AuditSink (`AuditWriter`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from iscp.model.access.authorization import (
    AuditEntry,
    AuditQuery,
    TokenRecord,
    check_wanted,
    digest_of,
    draw_token,
    id_of,
    is_jwt,
)
from iscp.model.access.security_config import OidcConfig, caller_of
from iscp.model.access.service_table import Credentials, KnownBy, Principal, Role
from iscp.model.values.errors import Conflict, InvalidRequest, IscpError, NotAuthenticated, Unavailable
from iscp.model.values.untrusted_values import error_text
from iscp.ports.admin import (
    AuditLog,
    KeySource,
    RandomHex,
    TokenProvider,
    TokenStore,
    TokenView,
    UnknownKey,
    VerifyingKeys,
)
from iscp.ports.system import Clock, Threads
from iscp.system.batch_writer import BatchLimits, BatchWriter, Outlet
from iscp.system.threads import THREADS

log = logging.getLogger(__name__)

# --- callers ----------------------------------------------------------------------------------------------------------

TOKENS_STALE_MAX_S = 4.0
"""Greatest age of a node's knowledge of tokens, in seconds; beyond it no token is good at that node, as one may have
been revoked. A revoked token is thus refused everywhere after this time, also by a node that etcd cannot reach.
"""


@dataclass(frozen=True, slots=True)
class CertificateCaller:
    """Whom a name in certificates stands for."""

    account: str
    role: Role


class KnownCallers:
    """The port `Authenticator`: who calls, by a token, iscp's or a provider's, or by a name in a certificate.

    A token counts alone where there is one: a certificate says nothing besides it.

    `certificates`: callers by names in certificates, in lower case. `node_name`: what nodes are known by (empty: by
    nothing); a node that calls for itself may see everything, as it could anyway. `provider`: whose tokens count
    besides those of iscp.
    """

    def __init__(
        self,
        certificates: Mapping[str, CertificateCaller],
        cluster_account: str,
        node_name: str,
        tokens: TokenView,
        clock: Clock,
        provider: TokenProvider | None = None,
    ) -> None:
        self._certificates = certificates
        self._cluster_account = cluster_account
        self._node_name = node_name.lower()
        self._tokens = tokens
        self._clock = clock
        self._provider = provider

    def identify(self, credentials: Credentials) -> Principal | None:
        if self._provider is not None and is_jwt(credentials.token):
            return self._provider.identify(credentials.token)
        if credentials.token:
            return self._by_token(credentials.token)
        return self._by_certificate({name.lower() for name in credentials.names})

    def sees_all(self, credentials: Credentials) -> bool:
        """Return whether the caller may see what is of all accounts. Raises NotAuthenticated and Unavailable."""
        caller = self.identify(credentials)
        return caller is not None and caller.everywhere

    def still_valid(self, principal: Principal) -> bool:
        """Return whether a caller who was let in may stay: waiting calls are ended by it. The answer never changes for
        a certificate.
        """
        if principal.known_by is not KnownBy.TOKEN:
            return self._clock.now_s() < principal.expires_at_s
        fresh = self._tokens.age_s <= TOKENS_STALE_MAX_S
        return fresh and self._tokens.book.holds(principal.name, self._clock.now_s())

    def _by_token(self, token: str) -> Principal:
        age_s, book = self._tokens.age_s, self._tokens.book  # in this order: the book may be newer, not older
        if not age_s <= TOKENS_STALE_MAX_S:
            raise Unavailable(
                "cannot be checked: this node does not know which tokens etcd has",
                field="authorization",
                remedy="Retry; see whether the node reaches etcd (`access.tokens_unconfirmed` in its log)",
            )
        record = book.find(token, self._clock.now_s())
        if record is None:
            raise NotAuthenticated(
                "is not known, has ended or was revoked",
                field="token",
                remedy="Get another one from an admin of the account (`iscp-admin token create`)",
            )
        return self._principal_of(record)

    def _principal_of(self, record: TokenRecord) -> Principal:
        everywhere = record.account == self._cluster_account
        return Principal(record.account, record.role, record.token_id, KnownBy.TOKEN, everywhere)

    def _by_certificate(self, names: set[str]) -> Principal | None:
        found = {self._certificates[name]: name for name in sorted(names) if name in self._certificates}
        if len(found) > 1:
            raise NotAuthenticated(
                f"has several names that stand for different callers: {', '.join(sorted(found.values()))}",
                field="certificate",
                remedy="Give it one of them, or let all stand for the same (accounts.*.certificates)",
            )
        for caller, name in found.items():
            everywhere = caller.account == self._cluster_account
            return Principal(caller.account, caller.role, name, KnownBy.CERTIFICATE, everywhere)
        if self._node_name and self._node_name in names:
            return Principal(self._cluster_account, Role.VIEWER, self._node_name, KnownBy.NODE, everywhere=True)
        return None


# --- keys of a provider of OpenID Connect -----------------------------------------------------------------------------

REFRESH_S = 300.0
"""Seconds between a node's fetches of a provider's keys; one that the provider has withdrawn is good for so long at
most.
"""

REFETCH_PAUSE_S = 10.0
"""Least seconds between two fetches of a provider's keys; for so long a token with a key that was not among them is
refused, after that it has them fetched again.
"""

KEYS_VALID_S = 3_600.0
"""Seconds that keys are good after the last fetch that succeeded; then no token of the provider is let in, as a key may
have been withdrawn.
"""

CLOSE_WAIT_S = 10.0
"""Seconds that a stopping node waits for a fetch of keys; then it is left to end by itself."""


class ProviderKeys:
    """The port `TokenProvider`: the public keys of a provider, and who has a token that they have signed; one thread
    fetches.

    No call waits for the provider. A token that names a key which is not known has the keys fetched again, though never
    sooner than after a pause, whatever comes; until then the answer is a temporary error, as the provider may have a
    new key.
    """

    def __init__(
        self,
        source: KeySource,
        config: OidcConfig,
        cluster_account: str,
        clock: Clock,
        threads: Threads,
        pause_s: float = REFETCH_PAUSE_S,
    ) -> None:
        self._source = source
        self._config = config
        self._cluster_account = cluster_account
        self._clock = clock
        self._pause_s = pause_s
        self._known: tuple[VerifyingKeys, float] | None = None
        """The keys, and the monotonic seconds at which their fetch began."""
        self._wanted, self._closing = False, False
        (self._wake,) = threads.conditions(1)
        self._thread = threads.thread("iscp-oidc-keys", self._run)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(CLOSE_WAIT_S)

    def identify(self, token: str) -> Principal:
        return caller_of(self._verify(token), self._config, self._cluster_account, self._clock.now_s())

    def turn(self) -> bool:
        """Fetch the keys; False if that failed, and those that are known stay."""
        began_s, before = self._clock.monotonic_s(), self._known
        try:
            keys = self._source.fetch()
        except IscpError as error:
            log.warning("oidc.keys_unavailable", extra={"reason": str(error), "age_s": self._age_s()})
            return False
        self._known = keys, began_s
        if before is None or set(before[0].key_ids) != set(keys.key_ids):
            log.info("oidc.keys_changed", extra={"key_ids": sorted(keys.key_ids)})
        return True

    def _verify(self, token: str) -> Mapping[str, object]:
        known = self._known
        age_s = self._clock.monotonic_s() - known[1] if known else None
        if known is None or age_s is None or age_s > KEYS_VALID_S:
            raise _unavailable("cannot be checked: this node does not know the provider's keys")
        try:
            return known[0].verify(token)
        except UnknownKey as error:
            if age_s <= self._pause_s:
                raise
            self._want()
            raise _unavailable("cannot be checked yet: its key is not known, and the keys are being fetched") from error

    def _want(self) -> None:
        with self._wake:
            self._wanted = True
            self._wake.notify_all()

    def _age_s(self) -> float | None:
        return round(self._clock.monotonic_s() - self._known[1], 1) if self._known else None

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wanted = False
            try:
                fetched = self.turn()
            except Exception:
                log.exception("oidc.keys_broken")
                fetched = False
            with self._wake:
                self._wake.wait_for(lambda: self._closing, self._pause_s)
                if fetched:
                    self._wake.wait_for(lambda: self._closing or self._wanted, REFRESH_S - self._pause_s)
                if self._closing:
                    return


def _unavailable(message: str) -> Unavailable:
    return Unavailable(
        message, field="token", remedy="Retry; see `oidc.keys_unavailable` in the node's log (security.oidc.jwks_url)"
    )


# --- tokens -----------------------------------------------------------------------------------------------------------

DRAWS_MAX = 5
"""Tokens that are drawn until one has an id of its own; then the request fails with a Conflict."""

AUDIT_LIMIT_MAX = 10_000
"""Calls of the audit in one answer; a request for more is refused."""


def create_token(
    store: TokenStore,
    account: str,
    role: Role,
    ttl_s: float,
    note: str,
    created_by: str,
    clock: Clock,
    random_hex: RandomHex,
) -> tuple[str, TokenRecord]:
    """Create a token as AccessService does. Raises what the store does, and InvalidRequest."""
    check_wanted(account, ttl_s, note)
    now_s = clock.now_s()
    for _ in range(DRAWS_MAX):
        token = draw_token(random_hex)
        fields = id_of(token) or "", digest_of(token), account, role, now_s, now_s + ttl_s, created_by, note
        if store.create(record := TokenRecord(*fields)):
            return token, record
    raise Conflict(f"{DRAWS_MAX} tokens were drawn whose ids there are already", remedy="Retry")


class TokenService:
    """The port `AccessService`: makes, lists and revokes tokens, and reads who changed what."""

    def __init__(self, store: TokenStore, audit: AuditLog, clock: Clock, random_hex: RandomHex) -> None:
        self._store = store
        self._audit = audit
        self._clock = clock
        self._random_hex = random_hex

    def create_token(
        self, account: str, role: Role, ttl_s: float, note: str, by: Principal | None
    ) -> tuple[str, TokenRecord]:
        created_by = f"{by.account}/{by.name}" if by else ""
        return create_token(self._store, account, role, ttl_s, note, created_by, self._clock, self._random_hex)

    def tokens(self, account: str) -> list[TokenRecord]:
        found = [record for record in self._store.records() if not account or record.account == account]
        return sorted(found, key=lambda record: record.created_at_s, reverse=True)

    def revoke_token(self, token_id: str, account: str) -> bool:
        if not token_id.isalnum():
            raise InvalidRequest("is no id of a token", field="token_id", remedy="See `iscp-admin token list`")
        return self._store.revoke(token_id, account)

    def audit(self, query: AuditQuery) -> list[AuditEntry]:
        if query.limit > AUDIT_LIMIT_MAX:
            raise InvalidRequest(
                f"must be at most {AUDIT_LIMIT_MAX}", field="limit", remedy="Read the table iscp_audit beside the log"
            )
        return self._audit.read(query)


# --- the audit --------------------------------------------------------------------------------------------------------

QUEUE_MAX = 20_000
"""Entries of the audit that wait to be written; those that come beyond are written to the node's own log alone, each
as `audit.lost`, and counted.
"""

QUEUE_CHARS_MAX = 32_000_000
"""Characters of these entries together; those that come beyond are treated as those beyond QUEUE_MAX."""

BATCH_MAX = 5_000
"""Entries of the audit in one commit; the others follow in further commits."""

RETRY_FIRST_S = 1.0
"""Pause after a failed write of the audit; it doubles up to RETRY_MAX_S."""

RETRY_MAX_S = 30.0
"""Longest pause between two attempts to write the audit."""

CLOSE_S = 10.0
"""Seconds that a stopping node waits for the last entries of the audit to be written; then each that is being written
still is in its log as `audit.unconfirmed`.
"""


class AuditWriter:
    """The port `AuditSink`: a thread writes who changed what, in batches of entries, from a queue that is never waited
    for.

    No call waits for the writer, and none fails because of it: see docs/authorization.md for why.
    """

    def __init__(
        self,
        audit: AuditLog,
        threads: Threads = THREADS,
        queue_max: int = QUEUE_MAX,
        queue_chars_max: int = QUEUE_CHARS_MAX,
        close_s: float = CLOSE_S,
    ) -> None:
        self.lost = 0
        """Entries that are not in the table, and never will be: they are in the node's log."""
        outlet = Outlet(
            append=audit.append,
            refuse=lambda entry, error: self._lose([entry], error_text(error)),
            on_failure=self._log_failure,
            lose=self._lose,
            doubt=lambda entries, why: _log_all("audit.unconfirmed", entries, why),
            weigh=lambda entry: entry.chars,
        )
        limits = BatchLimits(BATCH_MAX, RETRY_FIRST_S, RETRY_MAX_S, close_s, queue_max, queue_chars_max)
        self._lost_lock = threads.conditions(1)[0]
        self._batches = BatchWriter("audit", outlet, limits, threads=threads)

    def start(self) -> None:
        self._batches.start()

    def close(self) -> None:
        """Write what is pending, and end; what cannot be written is in the node's log then."""
        self._batches.close()

    def turn(self) -> bool:
        """Write one batch; return False if the storage failed, and the batch waits."""
        return self._batches.turn()

    def add(self, entries: Sequence[AuditEntry]) -> None:
        self._batches.add(entries)

    def counters(self) -> dict[str, int]:
        return {"audit_waiting": self._batches.waiting_count(), "audit_lost": self.lost}

    def _log_failure(self, error: IscpError) -> float:
        log.error("audit.failed", extra={"error": str(error), "waiting": self._batches.waiting_count()})
        return 0.0

    def _lose(self, entries: Sequence[AuditEntry], why: str) -> None:
        with self._lost_lock:
            self.lost += len(entries)
        _log_all("audit.lost", entries, why)


def _log_all(event: str, entries: Sequence[AuditEntry], why: str) -> None:
    for entry in entries:
        log.error(event, extra={"why": why, **{f"audit_{name}": it for name, it in asdict(entry).items()}})
