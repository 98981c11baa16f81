"""The part of the Python client that speaks of tokens and of the audit."""

from __future__ import annotations

from iscp.client.channel.silent_calls import Caller, listing
from iscp.client.codec.api_messages import AUDIT_ENTRY, TOKEN, role_to_wire
from iscp.client.codec.message_codec import to_request
from iscp.model.access.authorization import AuditEntry, TokenRecord, id_of
from iscp.model.values.errors import OutcomeUnknown
from iscp.model.values.untrusted_values import require_seconds
from iscp.wire.v1 import access_pb2 as pb
from iscp.wire.v1 import access_pb2_grpc as pb_grpc


class AccessClient:
    """`client.access`: for admins of an account. An empty account is the caller's own, or all for who acts for all."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._access = pb_grpc.AccessStub(caller.channel)

    def create_token(self, role: str, *, ttl_s: float, account: str = "", note: str = "") -> tuple[str, TokenRecord]:
        """Create a token; return its secret, which cannot be shown again, and its record. It is valid for `ttl_s`
        seconds.

        The call is not repeated where it may have been carried out: then it raises OutcomeUnknown, and there may be a
        token that nobody has. See `tokens`, and revoke it.
        """
        request = to_request(
            pb.CreateTokenRequest,
            account=account,
            role=role_to_wire(role),
            ttl_s=require_seconds(ttl_s, "ttl_s"),
            note=note,
        )
        try:
            response = self._caller.call(self._access.CreateToken, request, changes=True, once=True)
        except OutcomeUnknown as error:
            remedy = "Revoke the token that may have been made: the newest one of `iscp-admin token list`"
            raise OutcomeUnknown.from_error(error, remedy=remedy, code=error.code) from error
        return response.secret, TOKEN.from_wire(response.token, digest="")

    def tokens(self, *, account: str = "") -> list[TokenRecord]:
        """Return the tokens, the newest first, with those that have ended; each without its secret and digest."""
        request = to_request(pb.ListTokensRequest, account=account)
        found = self._caller.call(listing(self._access.ListTokens), request)
        return [TOKEN.from_wire(token, digest="") for page in found for token in page.tokens]

    def revoke_token(self, token_id: str, *, account: str = "") -> bool:
        """Revoke a token; return False if there is none, or no longer: also where an answer was lost, and the call was
        repeated.

        Within seconds every node refuses it. `token_id`: or the token itself, of which the id alone is sent.
        """
        token_id = id_of(token_id) or token_id
        request = to_request(pb.RevokeTokenRequest, account=account, token_id=token_id)
        return bool(self._caller.call(self._access.RevokeToken, request, changes=True).revoked)

    def audit(self, *, account: str = "", since_s: float = 0.0, method: str = "", limit: int = 0) -> list[AuditEntry]:
        """Return calls that changed something, newest first: since a time (Unix seconds), and at most `limit` (0:
        1,000).
        """
        request = to_request(
            pb.ReadAuditRequest,
            account=account,
            since_s=require_seconds(since_s, "since_s"),
            method=method,
            limit=limit,
        )
        found = self._caller.call(listing(self._access.ReadAudit), request)
        return [AUDIT_ENTRY.from_wire(entry) for page in found for entry in page.entries]
