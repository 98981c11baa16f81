"""The public keys by which a provider of OpenID Connect is known."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from iscp.core.values.access_roles import Principal
from iscp.core.values.errors import NotAuthenticated


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
