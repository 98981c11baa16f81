"""Decide whether a call may be made, by the caller's role and account and by the table of methods."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from iscp.core.access.service_table import RULES, Rule, Scope
from iscp.core.values.access_roles import Principal
from iscp.core.values.errors import NotAuthenticated, NotAuthorized


class ForeignAccount(NotAuthorized):
    """The call names another account. Nobody is shown this: see `iscp.core.access.service_table.Foreign`."""


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
