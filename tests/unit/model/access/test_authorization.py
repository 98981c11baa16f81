"""Below which roots an account's tables lie: how roots are written, what lies below one, and whose account has any.

Who may call what: by role, by account, and nothing that is not in the table.

Tokens: their form, that they are known by the whole of them alone, and until their end.
"""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iscp.model.access.authorization import (
    ENDED_AT_ONCE,
    ENDED_RETAINED_S,
    TTL_MAX_S,
    AccountRoots,
    ForeignAccount,
    RoleAuthorizer,
    TokenBook,
    TokenRecord,
    check_wanted,
    digest_of,
    draw_token,
    ended_before,
    id_of,
    id_within,
    is_jwt,
    is_plain_uri,
    is_root,
    lies_below,
    places_of,
    without_secrets,
)
from iscp.model.access.service_table import RULES, KnownBy, Principal, Role, Scope
from iscp.model.job.job_row import JobRow
from iscp.model.spec.spec import ConsumerSpec, JobSpec
from iscp.model.sql.sql_names import VIEW_STATE_SUFFIX
from iscp.model.values.errors import InvalidRequest, IscpError, NotAuthenticated, NotAuthorized
from iscp.model.values.ids import JobKey

LOCAL = ("/", "/data/a", "/data/a/", "/data/with blank", "/data/ü", "file:///data/a", "/data/a.b..c")
ELSEWHERE = ("s3://", "s3://lake", "s3://lake/", "s3://lake/a/b=1", "s3a://lake/a", "kafka://host:9092/topics")
ODD_LOCAL = (
    "data/a ./data /data/../a /data/./a //data/a /data//a /data/%61 /data\\a file:/data file://data/a file:///data/.."
)
ODD_S3 = (
    "s3:/lake/a s3://UPPER/a s3://lake//a s3://lake/../a s3://lake/%2e s3://lake/a* S3://lake/a s3n://lake/a s3:///a"
)


@pytest.mark.parametrize("root", [*LOCAL, *ELSEWHERE])
def test_a_root_is_a_directory_or_a_uri(root: str) -> None:
    assert is_root(root)


@pytest.mark.parametrize(
    "root", ["", " ", "/a\0", "s3://lake/a b", "http://h/?a", "kafka://", *ODD_LOCAL.split(), *ODD_S3.split()]
)
def test_what_could_be_read_in_two_ways_is_no_root(root: str) -> None:
    assert not is_root(root)


@pytest.mark.parametrize(
    ("place", "root", "below"),
    [
        ("/data/a/t", "/data/a", True),
        ("/data/a/x/t", "/data/a/", True),
        ("/data/a", "/data/a", False),  # what is kept beside a target would lie elsewhere
        ("/data/ab", "/data/a", False),
        ("/data/ab/t", "/data/a", False),
        ("/data", "/data/a", False),
        ("/DATA/a/t", "/data/a", False),
        ("/t", "/", True),
        ("s3://lake/t", "/", False),
        ("s3://lake/a/t", "s3://lake/a", True),
        ("s3://lake/ab", "s3://lake/a", False),
        ("s3://lake-b/a/t", "s3://lake", False),
        ("s3://lake/t", "s3://lake", True),
        ("s3://lake/t", "s3://", True),
        ("/s3://lake/t", "s3://", False),
    ],
)
def test_what_lies_below_a_root(place: str, root: str, below: bool) -> None:
    assert lies_below(place, root) is below


PARTS = st.lists(st.sampled_from(["a", "b", "ab", "A", "a b", "."]), max_size=4)


@given(PARTS, PARTS)
def test_a_place_is_below_where_its_first_parts_are_all_those_of_the_root(place: list[str], root: list[str]) -> None:
    below = lies_below("/" + "/".join(place), "/" + "/".join(root))
    assert below is (len(place) > len(root) and place[: len(root)] == root)


def test_once_an_account_has_roots_one_without_has_no_place_but_the_cluster_wide_one() -> None:
    roots = AccountRoots({"acme": ("/data/acme", "s3://lake/acme")}, "system")
    assert roots.of("acme") == ("/data/acme", "s3://lake/acme")
    assert roots.of("other") == roots.of("") == roots.of("ACME") == ()
    assert roots.of("system") is None
    assert AccountRoots({"system": ("/data",)}, "system").of("system") == ("/data",)


def test_without_any_roots_all_go_on_as_they_were() -> None:
    assert AccountRoots({}, "system").of("acme") is None


def test_a_job_has_its_source_its_further_tables_its_target_and_what_is_kept_beside_it() -> None:
    options = {"sql": "…", "tables": {"o": "/d/orders", "i": "/d/items"}}
    spec = JobSpec(ConsumerSpec("view", "/d/v", options=options)).to_json()
    places = list(places_of(JobRow(JobKey("acme", "t", "j"), "1", spec, "orders", "/d/orders")))
    target = "spec.iteration.consumer.target"
    assert places == [
        ("table", "/d/orders"),
        ("spec.iteration.consumer.options.tables.o", "/d/orders"),
        ("spec.iteration.consumer.options.tables.i", "/d/items"),
        *((target, place) for place in ("/d/v", "/d/v_dead_letter", f"/d/v{VIEW_STATE_SUFFIX}")),
    ]


@pytest.mark.parametrize(
    ("target", "plain"),
    [
        ("kafka://host:9092/topics/a", True),
        ("kafka://host/topics/../b", False),
        ("kafka://host/topics/%2e%2e/b", False),
        ("kafka://host/a?b", False),
        ("s3://lake/a", False),
        ("file:///a", False),
        ("topic", False),
    ],
)
def test_targets_in_other_stores_are_compared_as_they_are_written(target: str, plain: bool) -> None:
    assert is_plain_uri(target) is plain


AUTHORIZER = RoleAuthorizer("system")
REGISTER, GET, CLUSTER = (f"/iscp.wire.v1.Admin/{name}" for name in ("Register", "GetJob", "GetCluster"))
LOGS, DESCRIBE, HEALTH = (
    "/iscp.wire.v1.Operator/GetLogs",
    "/iscp.wire.v1.node.Node/Describe",
    "/grpc.health.v1.Health/Check",
)


def caller(role: Role, account: str = "acme") -> Principal:
    return Principal(account, role, "ana", KnownBy.TOKEN, everywhere=account == "system")


def refusal(principal: Principal | None, method: str, *accounts: str, everybody: bool = False) -> IscpError | None:
    try:
        AUTHORIZER.authorize(principal, method, accounts, everybody)
    except IscpError as error:
        return error
    return None


def test_roles_are_in_order() -> None:
    assert [[one.covers(other) for other in Role] for one in Role] == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, True, False],
        [True, True, True, True],
    ]


@pytest.mark.parametrize("role", Role)
def test_every_method_needs_its_role_and_is_had_by_those_above(role: Role) -> None:
    for method, rule in RULES.items():
        if rule.scope in (Scope.OPEN, Scope.NODES):
            continue
        allowed = refusal(caller(role, "system"), method, "acme", everybody=True) is None
        assert allowed is role.covers(rule.role), method


def test_an_account_is_for_itself_alone() -> None:
    assert refusal(caller(Role.EDITOR), REGISTER, "acme") is None
    assert isinstance(refusal(caller(Role.ADMIN), REGISTER, "acme", "other"), ForeignAccount)
    assert isinstance(refusal(caller(Role.ADMIN), GET, "other"), ForeignAccount)
    assert refusal(caller(Role.VIEWER, "system"), GET, "acme", "other") is None


def test_who_names_another_account_is_shown_how_to_name_the_own_one() -> None:
    """Commands name the account `default` where they are given none, so that leaving it out does not help."""
    refused = refusal(caller(Role.EDITOR), REGISTER, "default")
    assert isinstance(refused, ForeignAccount)
    assert "`--account acme` or ISCP_ACCOUNT=acme" in refused.remedy


def test_what_concerns_all_accounts_is_for_the_cluster_wide_one() -> None:
    for method, everybody in ((CLUSTER, False), (LOGS, True)):
        refused = refusal(caller(Role.ADMIN), method, everybody=everybody)
        assert isinstance(refused, NotAuthorized)
        assert "'system' alone" in refused.message
        assert refusal(caller(Role.OPERATOR, "system"), method, everybody=everybody) is None
    assert refusal(caller(Role.OPERATOR), LOGS, "acme") is None


def test_who_is_not_known_may_check_health_alone() -> None:
    assert refusal(None, HEALTH) is None
    assert all(
        isinstance(refusal(None, method), NotAuthorized)
        for method, rule in RULES.items()
        if rule.scope is not Scope.OPEN
    )
    assert isinstance(refusal(None, GET), NotAuthenticated)


def test_what_is_not_in_the_table_and_what_is_for_nodes_is_refused() -> None:
    for method in ("/iscp.wire.v1.Admin/Unheard", "/x/Y", "", DESCRIBE):
        assert isinstance(refusal(caller(Role.ADMIN, "system"), method), NotAuthorized)
    assert AUTHORIZER.rule("/x/Y") is None


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
