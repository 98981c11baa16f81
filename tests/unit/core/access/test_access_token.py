"""Tokens: their form, that they are known by the whole of them alone, and until their end."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

from iscp.core.access.access_token import (
    ENDED_AT_ONCE,
    ENDED_RETAINED_S,
    TTL_MAX_S,
    TokenBook,
    TokenRecord,
    check_wanted,
    digest_of,
    draw_token,
    ended_before,
    id_of,
    id_within,
    is_jwt,
    without_secrets,
)
from iscp.core.values.access_roles import Role
from iscp.core.values.errors import InvalidRequest


def record_of(token: str, expires_at_s: float = 100.0) -> TokenRecord:
    return TokenRecord(id_of(token) or "", digest_of(token), "acme", Role.EDITOR, 0.0, expires_at_s)


def test_a_token_has_256_random_bits_and_an_id() -> None:
    token = draw_token(secrets.token_hex)
    assert len(bytes.fromhex(token.removeprefix("iscp_"))) == 32
    assert id_of(token) == token[5:17]
    assert draw_token(secrets.token_hex) != token


@pytest.mark.parametrize("text", ["", "iscp_", "iscp_" + "g" * 64, "iscp_" + "a" * 63, "a" * 64, "iscp_" + "A" * 64])
def test_what_has_another_form_is_no_token(text: str) -> None:
    assert id_of(text) is None
    assert TokenBook([record_of(draw_token(secrets.token_hex))]).find(text, 0.0) is None


def test_only_the_whole_token_is_known_and_only_until_its_end() -> None:
    token = draw_token(secrets.token_hex)
    book, record = TokenBook([record_of(token)]), record_of(token)
    assert book.find(token, 99.9) == record
    assert book.find(token, 100.0) is None
    forged = token[:-1] + ("0" if token[-1] != "0" else "1")  # of the same id
    assert id_of(forged) == record.token_id
    assert book.find(forged, 0.0) is None
    assert TokenBook().find(token, 0.0) is None
    assert book.holds(record.token_id, 99.9)
    assert not book.holds(record.token_id, 100.0)
    assert not book.holds("other", 0.0)


def test_what_is_kept_does_not_lead_to_the_token() -> None:
    token = draw_token(secrets.token_hex)
    assert token not in repr(record_of(token))
    assert record_of(token).digest not in repr(record_of(token))


@pytest.mark.parametrize(
    ("account", "ttl_s", "note", "field"),
    [
        ("", 1.0, "", "account"),
        (" a", 1.0, "", "account"),
        ("a\nb", 1.0, "", "account"),
        ("a", 0.0, "", "ttl_s"),
        ("a", TTL_MAX_S + 1, "", "ttl_s"),
        ("a", float("nan"), "", "ttl_s"),
        ("a", 1.0, "x" * 201, "note"),
        ("a", 1.0, "two\nlines", "note"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(account: str, ttl_s: float, note: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_wanted(account, ttl_s, note)
    assert refused.value.field == field
    assert refused.value.remedy
    check_wanted("a", TTL_MAX_S, "for the nightly run")


def test_of_what_holds_a_token_its_id_is_left() -> None:
    token = draw_token(secrets.token_hex)
    assert {id_within(text) for text in (token, token[5:], token[5:17], token[:20])} == {token[5:17]}
    assert {id_within(text) for text in ("", "iscp_", token[5:16], f" {token}", "hunter2")} == {""}
    assert without_secrets(f"{token}, {token[5:17]}") == f"{token[:17]}…, {token[5:17]}"
    assert without_secrets("of eyJh.eyJz.c2ln-_A: no") == "of eyJh.eyJz.…: no"


def test_a_token_of_a_provider_is_known_by_its_form() -> None:
    assert is_jwt("eyJh.eyJz.c2ln-_A=")
    assert is_jwt("eyJh..")  # whoever reads it refuses it as one
    others = ("", "..", ".a.b", "a.b", "a.b.c.d", "a b.c.d", "a.b.c\n", "é.b.c", draw_token(secrets.token_hex))
    assert not any(map(is_jwt, others))


def test_those_that_have_long_ended_go_first_those_of_the_same_account() -> None:
    made = replace(record_of(draw_token(secrets.token_hex)), created_at_s=100.0 + ENDED_RETAINED_S)
    other = replace(record_of(draw_token(secrets.token_hex)), account="other")
    ended = record_of(draw_token(secrets.token_hex))
    assert ended_before([other, ended, replace(ended, expires_at_s=100.1)], made) == [ended, other]
    assert ended_before([other] * ENDED_AT_ONCE + [ended], made) == [ended] + [other] * (ENDED_AT_ONCE - 1)
