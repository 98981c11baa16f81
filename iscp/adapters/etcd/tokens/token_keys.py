"""The keys of tokens in etcd, and what their values say (docs/etcd-keys.md).

tokens/<id>   a token: its hash, account, role and end; never the token
head          written with each change of a token, so that one read says whether any has changed
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass

from iscp.adapters.etcd.values import KeyValue
from iscp.core.access.access_token import TokenRecord
from iscp.core.values.access_roles import Role
from iscp.core.values.untrusted_values import exact_float, exact_int, exact_name, named_error, printable

log = logging.getLogger(__name__)

FORMAT = 1
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TokenKeys:
    """Below `prefix`, which ends in `/`."""

    prefix: str

    @property
    def head(self) -> str:
        return f"{self.prefix}head"

    @property
    def tokens(self) -> str:
        return f"{self.prefix}tokens/"

    def token(self, token_id: str) -> str:
        return f"{self.tokens}{token_id}"

    def read_token(self, kv: KeyValue) -> TokenRecord | None:
        """Return the token's record; None: it is no token, or none that this version can read; then nobody is known by
        it.
        """
        if not kv.key.startswith(self.tokens):
            return None
        try:
            fields = json.loads(kv.value)
            if exact_int(fields["format"], "format") > FORMAT:
                raise ValueError(f"it is of format {fields['format']}, and this node knows {FORMAT}")
            if not _DIGEST.fullmatch(exact_name(fields["digest"], "digest")):
                raise ValueError("it has no digest")
            return TokenRecord(
                token_id=kv.key.removeprefix(self.tokens),
                digest=fields["digest"],
                account=exact_name(fields["account"], "account"),
                role=Role(fields["role"]),
                created_at_s=exact_float(fields["created_at_s"], "created_at_s"),
                expires_at_s=exact_float(fields["expires_at_s"], "expires_at_s"),
                created_by=exact_name(fields["created_by"], "created_by"),
                note=exact_name(fields["note"], "note"),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            log.warning("access.unreadable_token", extra={"key": printable(kv.key), "reason": named_error(error)})
            return None


def value_of(record: TokenRecord) -> bytes:
    """Return the value of a token's key."""
    return json.dumps(
        {
            "format": FORMAT,
            "digest": record.digest,
            "account": record.account,
            "role": record.role.value,
            "created_at_s": record.created_at_s,
            "expires_at_s": record.expires_at_s,
            "created_by": record.created_by,
            "note": record.note,
        }
    ).encode()
