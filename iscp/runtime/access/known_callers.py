"""Says who calls: by a token, iscp's or a provider's, or by a name in a certificate (port Authenticator)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iscp.core.access.access_token import TokenRecord, is_jwt
from iscp.core.values.access_roles import Credentials, KnownBy, Principal, Role
from iscp.core.values.errors import NotAuthenticated, Unavailable
from iscp.ports.access.oidc_ports import TokenProvider
from iscp.ports.access.token_ports import TokenView
from iscp.ports.system import Clock

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
    """A token counts alone where there is one: a certificate says nothing besides it.

    `certificates`: callers by names in certificates, in lower case. `node_name`: what nodes are known by (empty: by
    nothing); a node that calls for itself may see everything, as it could anyway. `provider`: whose tokens
    count besides those of iscp.
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
