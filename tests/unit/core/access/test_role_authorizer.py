"""Who may call what: by role, by account, and nothing that is not in the table."""

from __future__ import annotations

import pytest

from iscp.core.access.role_authorizer import ForeignAccount, RoleAuthorizer
from iscp.core.access.service_table import RULES, Scope
from iscp.core.values.access_roles import KnownBy, Principal, Role
from iscp.core.values.errors import IscpError, NotAuthenticated, NotAuthorized

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
