"""Tokens by which clients are known: their form, what is kept of them, and which of those that are kept one is.

A token is `iscp_` and 256 random bits in hexadecimal digits. The first of these are its id, which may be shown; of the
rest only a hash of the whole is kept, so that who reads it cannot use it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from iscp.core.job.name_patterns import name_fault
from iscp.core.values.access_roles import Role
from iscp.core.values.errors import InvalidRequest

_TOKEN_BYTES = 32
_ID_CHARS = 12
_FORM = re.compile(rf"iscp_([0-9a-f]{{{2 * _TOKEN_BYTES}}})")
_ID_FORM = re.compile(rf"(?:iscp_)?([0-9a-f]{{{_ID_CHARS}}})[0-9a-f]*")
_SECRET = re.compile(rf"(iscp_[0-9a-f]{{{_ID_CHARS}}})[0-9a-f]+")
_JWT = re.compile(r"[A-Za-z0-9_=-]+(\.[A-Za-z0-9_=-]*){2}")
_JWT_SIGNATURE = re.compile(r"(eyJ[A-Za-z0-9_=-]*\.[A-Za-z0-9_=-]*\.)[A-Za-z0-9_=-]+")

TOKENS_MAX = 10_000
"""Tokens of a cluster, with those that have ended and are not deleted yet; one more is refused."""

TOKENS_PER_ACCOUNT_MAX = 1_000
"""As TOKENS_MAX, of one account; it does not hold for the cluster-wide one."""

TOKENS_SPARE = 100
"""Tokens beyond TOKENS_MAX that the cluster-wide account may have, so that others cannot keep it out."""

ENDED_KEPT_S = 3_600.0
"""How long a token that has ended is kept at least, as the node's clock may be ahead of others'; it is deleted when
another one is made then.
"""

ENDED_AT_ONCE = 100
"""Tokens that have ended which are deleted when one is made, those of its account before others."""

TTL_MAX_S = 366 * 86_400.0
"""How long a token may be valid; a longer time is refused."""

TOKEN_CHARS_MAX = 6_000
"""Characters of a token, one of a provider included; a longer one is refused, as it would not fit into a call's
metadata.
"""

NOTE_CHARS_MAX = 200
"""Characters of what a token is said to be for; a longer note is refused."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is kept of a token. Times are Unix seconds; `digest`: SHA-256 of the whole, in hexadecimal digits."""

    token_id: str
    digest: str = field(repr=False)
    account: str
    role: Role
    created_at_s: float
    expires_at_s: float
    created_by: str = ""
    note: str = ""


def draw_token(random_hex: Callable[[int], str]) -> str:
    """A new one. `random_hex` gives so many random bytes in hexadecimal digits."""
    return f"iscp_{random_hex(_TOKEN_BYTES)}"


def id_of(token: str) -> str | None:
    """None: it has not the form of a token."""
    found = _FORM.fullmatch(token)
    return found[1][:_ID_CHARS] if found else None


def id_within(text: str) -> str:
    """The id in what was given as one, also where it is a whole token, or a part of one; empty: there is none."""
    found = _ID_FORM.fullmatch(text)
    return found[1] if found else ""


def without_secrets(text: str) -> str:
    """`text` with the ids alone of the tokens that are in it, and those of providers without their signatures."""
    return _JWT_SIGNATURE.sub(r"\1…", _SECRET.sub(r"\1…", text))


def is_jwt(token: str) -> bool:
    """Whether it has the form of a token that a provider of OpenID Connect signs; those of iscp have no dots."""
    return _JWT.fullmatch(token) is not None


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


_NOBODYS = digest_of("")


class TokenBook:
    """The tokens that are known, by their ids. It is not changed: another one takes its place."""

    def __init__(self, records: Iterable[TokenRecord] = ()) -> None:
        self._records: Mapping[str, TokenRecord] = {record.token_id: record for record in records}

    def __len__(self) -> int:
        return len(self._records)

    def find(self, token: str, now_s: float) -> TokenRecord | None:
        """The record of a token that is valid; None: it is not known, was revoked, or has ended.

        The time that it takes says nothing of how much of a digest is right.
        """
        record = self._records.get(id_of(token) or "")
        same = hmac.compare_digest(record.digest if record else _NOBODYS, digest_of(token))
        return record if record is not None and same and now_s < record.expires_at_s else None

    def holds(self, token_id: str, now_s: float) -> bool:
        """Whether the token of this id is valid still."""
        record = self._records.get(token_id)
        return record is not None and now_s < record.expires_at_s


def ended_before(records: Iterable[TokenRecord], made: TokenRecord) -> list[TokenRecord]:
    """Those to be deleted when one is made: long ended, and at most ENDED_AT_ONCE."""
    ended = [record for record in records if record.expires_at_s + ENDED_KEPT_S <= made.created_at_s]
    return sorted(ended, key=lambda record: record.account != made.account)[:ENDED_AT_ONCE]


def check_wanted(account: str, ttl_s: float, note: str) -> None:
    """Raises InvalidRequest where there can be no such token."""
    if name_fault(account):
        raise InvalidRequest("is no name of an account", field="account", remedy="Name one, as jobs have it")
    if not 0 < ttl_s <= TTL_MAX_S:
        raise InvalidRequest(
            f"must be more than 0 and at most {TTL_MAX_S:.0f} seconds",
            field="ttl_s",
            remedy="Make another token before the end of this one",
        )
    if len(note) > NOTE_CHARS_MAX or not note.isprintable():
        raise InvalidRequest(
            f"must be one line of at most {NOTE_CHARS_MAX} characters", field="note", remedy="Give a shorter one"
        )
