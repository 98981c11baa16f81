"""Tokens by which clients are known: how they are written, what is stored of them, and how one is found.

A token is `iscp_` and 256 random bits in hexadecimal digits. The first of these are its id, which may be shown. Only a
hash of the whole token is stored, so that whoever reads the store cannot use the token.
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
"""Tokens of one account, the cluster-wide one excepted; one more is refused."""

TOKENS_SPARE = 100
"""Tokens beyond TOKENS_MAX that the cluster-wide account may have, so that others cannot keep it out."""

ENDED_RETAINED_S = 3_600.0
"""How long a token that has ended is retained at least, as the node's clock may be ahead of others'; it is deleted when
another one is made after that.
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
    """The stored record of a token. Times are Unix seconds; `digest` is the SHA-256 of the whole token in hexadecimal
    digits.
    """

    token_id: str
    digest: str = field(repr=False)
    account: str
    role: Role
    created_at_s: float
    expires_at_s: float
    created_by: str = ""
    note: str = ""


def draw_token(random_hex: Callable[[int], str]) -> str:
    """Return a new token. `random_hex` gives so many random bytes in hexadecimal digits."""
    return f"iscp_{random_hex(_TOKEN_BYTES)}"


def id_of(token: str) -> str | None:
    """Return the id of a token, or None if it does not have the form of a token."""
    found = _FORM.fullmatch(token)
    return found[1][:_ID_CHARS] if found else None


def id_within(text: str) -> str:
    """Return the id in `text`, which may be an id, a token or the beginning of one; empty if there is none."""
    found = _ID_FORM.fullmatch(text)
    return found[1] if found else ""


def without_secrets(text: str) -> str:
    """Return `text` with tokens cut down to their ids, and with tokens of providers cut before their signatures."""
    return _JWT_SIGNATURE.sub(r"\1…", _SECRET.sub(r"\1…", text))


def is_jwt(token: str) -> bool:
    """Return whether `token` has the form of a token that a provider of OpenID Connect signs; tokens of iscp have no
    dots.
    """
    return _JWT.fullmatch(token) is not None


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


_NOBODYS = digest_of("")


class TokenBook:
    """The known tokens by their ids. A book is immutable: a change makes another one."""

    def __init__(self, records: Iterable[TokenRecord] = ()) -> None:
        self._records: Mapping[str, TokenRecord] = {record.token_id: record for record in records}

    def __len__(self) -> int:
        return len(self._records)

    def find(self, token: str, now_s: float) -> TokenRecord | None:
        """Return the record of a token that is valid, or None if it is not known, was revoked or has ended.

        How long this takes says nothing of how much of a digest is right.
        """
        record = self._records.get(id_of(token) or "")
        same = hmac.compare_digest(record.digest if record else _NOBODYS, digest_of(token))
        return record if record is not None and same and now_s < record.expires_at_s else None

    def holds(self, token_id: str, now_s: float) -> bool:
        """Return whether the token of this id is still valid."""
        record = self._records.get(token_id)
        return record is not None and now_s < record.expires_at_s


def ended_before(records: Iterable[TokenRecord], made: TokenRecord) -> list[TokenRecord]:
    """Return the tokens to delete when one is made: those that ended long ago, at most ENDED_AT_ONCE."""
    ended = [record for record in records if record.expires_at_s + ENDED_RETAINED_S <= made.created_at_s]
    return sorted(ended, key=lambda record: record.account != made.account)[:ENDED_AT_ONCE]


def check_wanted(account: str, ttl_s: float, note: str) -> None:
    """Raise InvalidRequest if there can be no such token."""
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
