"""Who calls: by a token alone where there is one, else by a name in a certificate, and by nothing that is doubtful."""

from __future__ import annotations

import pytest

from iscp.core.values.access_roles import Credentials, KnownBy, Principal, Role
from iscp.core.values.errors import NotAuthenticated, Unavailable
from iscp.runtime.access.known_callers import TOKENS_STALE_MAX_S, CertificateCaller
from tests.fakes.access import Access
from tests.fakes.clock import FakeClock

NODE = "node.lake.iscp"
CERTIFICATES = {
    "ana.acme": CertificateCaller("acme", Role.EDITOR),
    "ana": CertificateCaller("acme", Role.EDITOR),
    "root": CertificateCaller("system", Role.ADMIN),
}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def access(clock: FakeClock) -> Access:
    return Access(clock, CERTIFICATES, NODE)


def identify(access: Access, *names: str, token: str = "") -> Principal | None:
    return access.callers.identify(Credentials(token, frozenset(names)))


def test_a_certificate_is_known_by_any_of_its_names(access: Access) -> None:
    assert identify(access, "host", "Ana.ACME") == Principal("acme", Role.EDITOR, "ana.acme", KnownBy.CERTIFICATE)
    assert identify(access, "ana", "ana.acme") is not None  # both stand for the same
    assert identify(access, "root") == Principal("system", Role.ADMIN, "root", KnownBy.CERTIFICATE, everywhere=True)
    assert identify(access, "nobody") is None
    assert identify(access) is None


def test_a_certificate_with_names_of_several_callers_is_of_none(access: Access) -> None:
    with pytest.raises(NotAuthenticated, match="several names"):
        identify(access, "ana", "root")


def test_a_node_that_calls_for_itself_sees_all_and_changes_nothing(access: Access) -> None:
    node = identify(access, NODE, "host")
    assert node == Principal("system", Role.VIEWER, NODE, KnownBy.NODE, everywhere=True)
    assert identify(Access(FakeClock()), NODE, "") is None  # without TLS nobody is known by that


def test_what_is_of_all_accounts_is_seen_by_nodes_and_callers_of_the_cluster_account_alone(access: Access) -> None:
    def sees_all(*names: str, token: str = "") -> bool:
        return access.callers.sees_all(Credentials(token, frozenset(names)))

    assert sees_all("root")
    assert sees_all(NODE)
    assert sees_all(token=access.token(Role.VIEWER, "system"))
    assert not sees_all("ana")
    assert not sees_all("root", token=access.token(Role.ADMIN, "acme"))
    assert not sees_all()
    with pytest.raises(NotAuthenticated):
        sees_all(token="garbage")


def test_a_token_counts_alone(access: Access) -> None:
    token = access.token(Role.VIEWER, "acme")
    found = identify(access, "root", token=token)
    assert found == Principal("acme", Role.VIEWER, token[5:17], KnownBy.TOKEN)
    with pytest.raises(NotAuthenticated):
        identify(access, "root", token="garbage")
    system = identify(access, token=access.token(Role.ADMIN, "system"))
    assert system is not None
    assert system.everywhere


class FakeProvider:
    def identify(self, token: str) -> Principal:
        if token != "a.b.c":
            raise NotAuthenticated("is another provider's")
        return Principal("acme", Role.EDITOR, "oidc:root", KnownBy.OIDC, expires_at_s=FakeClock().now_s() + 60)


def test_a_token_of_a_provider_counts_alone_too_until_its_end(clock: FakeClock) -> None:
    access = Access(clock, CERTIFICATES, NODE, FakeProvider())
    found = identify(access, "root", NODE, token="a.b.c")
    assert found is not None
    assert (found.account, found.name, found.known_by) == ("acme", "oidc:root", KnownBy.OIDC)
    with pytest.raises(NotAuthenticated, match="another provider"):
        identify(access, "root", token="a.b.d")
    assert identify(access, token=access.token(Role.VIEWER)) is not None  # others go on
    access.tokens.age_s = TOKENS_STALE_MAX_S + 0.1  # etcd has nothing to do with it
    assert identify(access, token="a.b.c") == found
    assert access.callers.still_valid(found)
    clock.advance(60.0)
    assert not access.callers.still_valid(found)


def test_without_a_provider_its_tokens_are_as_any_other(access: Access) -> None:
    with pytest.raises(NotAuthenticated, match="not known"):
        identify(access, "root", token="a.b.c")


def test_tokens_are_good_until_their_end_and_while_they_are_known_well(access: Access) -> None:
    token = access.token(Role.VIEWER)
    principal = identify(access, token=token)
    assert principal is not None
    assert access.callers.still_valid(principal)
    access.tokens.age_s = TOKENS_STALE_MAX_S + 0.1
    assert not access.callers.still_valid(principal)
    with pytest.raises(Unavailable):
        identify(access, token=token)
    by_certificate = identify(access, "ana")  # of these nothing changes while a node runs
    assert by_certificate is not None
    assert access.callers.still_valid(by_certificate)
    access.tokens.age_s = float("nan")
    with pytest.raises(Unavailable):
        identify(access, token=token)
    access.tokens.age_s = 0.0
    access.tokens.expire(principal.name)
    assert not access.callers.still_valid(principal)
    with pytest.raises(NotAuthenticated):
        identify(access, token=token)
