"""Making tokens: refused before anything is kept, never with an id that there is, and shown once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iscp.core.access.audit_entry import AuditQuery
from iscp.core.values.access_roles import KnownBy, Principal, Role
from iscp.core.values.errors import Conflict, InvalidRequest
from iscp.runtime.access.token_service import AUDIT_LIMIT_MAX, TokenService
from tests.fakes.access import FakeAudit, FakeTokens
from tests.fakes.clock import FakeClock

ROOT = Principal("system", Role.ADMIN, "root", KnownBy.CERTIFICATE, everywhere=True)


def service(draws: Iterator[str], store: FakeTokens | None = None) -> TokenService:
    return TokenService(store or FakeTokens(), FakeAudit(), FakeClock(), lambda size: next(draws)[0] * 2 * size)


def test_a_token_has_an_end_and_says_who_made_it() -> None:
    store = FakeTokens()
    token, record = service(iter("a"), store).create_token("acme", Role.EDITOR, 60.0, "n", ROOT)
    assert token == "iscp_" + "a" * 64
    assert record.expires_at_s - record.created_at_s == 60.0
    assert (record.created_by, record.note) == ("system/root", "n")
    assert store.records() == [record]


def test_an_id_that_there_is_is_drawn_again() -> None:
    made = service(iter("aab"))
    first, second = (made.create_token("acme", Role.EDITOR, 60.0, "", None)[1].token_id for _ in range(2))
    assert (first, second) == ("a" * 12, "b" * 12)
    with pytest.raises(Conflict):
        service(iter("cccccccccc"), FakeTokens({"c" * 12: made.tokens("")[0]})).create_token(
            "a", Role.ADMIN, 1, "", None
        )


def test_what_is_wrong_is_refused_before_anything_is_kept() -> None:
    store = FakeTokens()
    with pytest.raises(InvalidRequest):
        service(iter("a"), store).create_token("", Role.EDITOR, 60.0, "", None)
    assert store.records() == []
    for token_id in ("", "../x", "a b"):
        with pytest.raises(InvalidRequest):
            service(iter("")).revoke_token(token_id, "")
    with pytest.raises(InvalidRequest, match=str(AUDIT_LIMIT_MAX)):
        service(iter("")).audit(AuditQuery(limit=AUDIT_LIMIT_MAX + 1))
