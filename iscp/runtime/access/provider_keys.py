"""Follows the public keys of a provider of OpenID Connect, and says who has a token that they have signed.

No call waits for the provider. A token that names a key which is not known has the keys fetched again, though never
sooner than after a pause, whatever comes; until then it is a temporary error, as the provider may have a new key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from iscp.core.access.oidc_identity import caller_of
from iscp.core.access.security_config import OidcConfig
from iscp.core.values.access_roles import Principal
from iscp.core.values.errors import IscpError, Unavailable
from iscp.ports.access.oidc_ports import KeySource, UnknownKey, VerifyingKeys
from iscp.ports.system import Clock, Threads

log = logging.getLogger(__name__)

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
    """The port `TokenProvider`; one thread fetches."""

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
