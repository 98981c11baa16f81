"""Access by callers: the decision on a call, the roots below which an account's tables may lie, the entries of the
audit, and the tokens by which clients are known.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from iscp.model.access.service_table import RULES, Principal, Role, Rule, Scope
from iscp.model.job.job_row import JobRow, tables_of
from iscp.model.job.registration_id import name_fault
from iscp.model.sql.sql_names import DEAD_LETTER_SUFFIX, VIEW_STATE_SUFFIX
from iscp.model.values.errors import InvalidRequest, NotAuthenticated, NotAuthorized

# --- the decision on a call -------------------------------------------------------------------------------------------
# A call is decided by the caller's role and account, and by the table of methods.


class ForeignAccount(NotAuthorized):
    """The call names another account. Nobody is shown this: see `iscp.model.access.service_table.Foreign`."""


class RoleAuthorizer:
    """The port `Authorizer`. `cluster_account` is the account that may act for all, as errors name it."""

    def __init__(self, cluster_account: str, rules: Mapping[str, Rule] = RULES) -> None:
        self._cluster_account = cluster_account
        self._rules = rules

    def rule(self, method: str) -> Rule | None:
        return self._rules.get(method)

    def authorize(self, principal: Principal | None, method: str, accounts: Collection[str], everybody: bool) -> None:
        rule = self._rules.get(method)
        if rule is None or rule.scope is Scope.NODES:
            raise NotAuthorized(
                "is for nobody who calls so", field="method", remedy="Is the client newer than the nodes?"
            )
        if rule.scope is Scope.OPEN:
            return
        if principal is None:
            raise NotAuthenticated(
                "the call does not say who calls",
                about="authorization",
                remedy="Give a token (ISCP_TOKEN_FILE, `iscp-admin context set --token-file`), or a certificate that "
                "the nodes' configuration knows (accounts.*.certificates)",
            )
        if not principal.role.covers(rule.role):
            raise NotAuthorized(
                f"this needs the role {rule.role}, and the caller is {principal.role} of the account "
                f"{principal.account!r}",
                about="role",
                remedy="Have somebody do it who has that role, or get a token with it",
            )
        if principal.everywhere:
            return
        if rule.scope is Scope.CLUSTER or everybody:
            raise NotAuthorized(
                f"this concerns all accounts, and is for the account {self._cluster_account!r} alone",
                about="account",
                remedy="Name a job or an account, where the call allows that, or have somebody do it of that account",
            )
        if rule.scope is Scope.ACCOUNT and any(each != principal.account for each in accounts):
            own = principal.account
            raise ForeignAccount(
                f"the caller is of the account {own!r}, and may do nothing in another one",
                about="account",
                # Commands that name a job name an account too, `default` where they are given none.
                remedy=f"Name the caller's own by `--account {own}` or ISCP_ACCOUNT={own}, in a file by "
                f"`account: {own}`; or call as somebody of that account",
            )


# --- roots of accounts ------------------------------------------------------------------------------------------------
# Roots are directories and URIs below which the tables of an account may lie, as the configuration says. Places are
# compared as they are spelled once links are followed; `iscp.engine.account_turns` spells them so.

SOURCE_FIELD = "table"
TARGET_FIELD = "spec.iteration.consumer.target"
TABLES_FIELD = "spec.iteration.consumer.options.tables"

ROOTS_MAX = 100
"""Roots of one account; more are refused at the node's start."""

_PATH = re.compile(r"/(?!/)[^\\%\0]*")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_S3_URI = re.compile(rf"s3a?://({_BUCKET.pattern}(/[A-Za-z0-9._=@~-]+)*)?")
# Other stores are those of consumers of others, whose targets are compared as they are written.
_URI = re.compile(r"(?!s3|file:)[a-z][a-z0-9+.-]*://[A-Za-z0-9._:@-]+(/[A-Za-z0-9._:=@~-]+)*")


def is_bucket(name: str) -> bool:
    """Return whether `name` may be the name of a bucket on S3."""
    return bool(_BUCKET.fullmatch(name))


def is_root(root: str) -> bool:
    """Return whether a root is written so that everything reads it alike: as an absolute path, or as a URI without
    escapes.
    """
    path = root.removeprefix("file://") if root.startswith("file:///") else root
    if path != "/" and not path.endswith("://"):
        path = path.rstrip("/")
    if not _has_plain_parts(path):
        return False
    return "//" not in path.split("://", 1)[-1] and any(form.fullmatch(path) for form in (_PATH, _S3_URI, _URI))


def is_plain_uri(place: str) -> bool:
    """Return whether a target in another kind of store than Delta's is written so that everything reads it alike."""
    return bool(_URI.fullmatch(place)) and _has_plain_parts(place)


def _has_plain_parts(path: str) -> bool:
    return not any(part in (".", "..") for part in path.split("/"))


def lies_below(place: str, root: str) -> bool:
    """Return whether a place lies strictly below a root, both in their one spelling.

    `/` is above all local paths, and `s3://` above all buckets.
    """
    return place.startswith(root if root.endswith("/") else f"{root}/") and place != root


@dataclass(frozen=True, slots=True)
class AccountRoots:
    """The roots of the accounts that have any; `cluster_account` is restricted to roots only where it has some
    itself.
    """

    by_account: Mapping[str, Collection[str]] = field(default_factory=dict)
    cluster_account: str = ""

    def of(self, account: str) -> tuple[str, ...] | None:
        """Return the roots of an account, or None if it may go wherever the node may.

        As soon as one account has roots, an account without any has no place at all.
        """
        if account in self.by_account:
            return tuple(self.by_account[account])
        return None if not self.by_account or account == self.cluster_account else ()


def places_around(target: str) -> tuple[str, ...]:
    """Return a target and the tables that are stored beside it."""
    return target, target + DEAD_LETTER_SUFFIX, target + VIEW_STATE_SUFFIX


def places_of(row: JobRow) -> Iterator[tuple[str, str]]:
    """Yield the places that a job reads and writes, each with the field that names it."""
    yield SOURCE_FIELD, row.table_uri
    for name, uri in tables_of(row).items():
        yield f"{TABLES_FIELD}.{name}", uri
    if target := row.spec.consumer.target:
        for place in places_around(target):
            yield TARGET_FIELD, place


# --- the audit --------------------------------------------------------------------------------------------------------
# An entry is one call that changed something, or was to: who made it, from where, what it named, and how it ended.


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


# --- tokens -----------------------------------------------------------------------------------------------------------
# A token is `iscp_` and 256 random bits in hexadecimal digits. The first of these are the token's id, which may be
# shown. Only a hash of the whole token is stored, so that whoever reads the store cannot use the token.

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
