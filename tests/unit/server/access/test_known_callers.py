"""Who calls: by a token alone where there is one, else by a name in a certificate, and by nothing that is doubtful.

Keys of a provider are followed: a new one is fetched soon and not too often, and old ones are not good for ever.

Making tokens: refused before anything is kept, never with an id that there is, and shown once.

The audit's writer: nobody waits for it, and what it cannot keep is in the node's log.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from iscp.model.access.authorization import AuditEntry, AuditQuery
from iscp.model.access.security_config import OidcConfig
from iscp.model.access.service_table import Credentials, KnownBy, Principal, Role
from iscp.model.values.errors import Conflict, InvalidRequest, IscpError, NotAuthenticated, StorageError, Unavailable
from iscp.ports.admin import UnknownKey
from iscp.ports.system import Clock
from iscp.server.access.known_callers import (
    AUDIT_LIMIT_MAX,
    KEYS_VALID_S,
    REFETCH_PAUSE_S,
    TOKENS_STALE_MAX_S,
    AuditWriter,
    CertificateCaller,
    ProviderKeys,
    TokenService,
)
from iscp.system.threads import THREADS, SystemClock
from tests.fakes.access import Access, FakeAudit, FakeTokens
from tests.fakes.clock import FakeClock
from tests.fakes.waiting import until

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


CONFIG = OidcConfig(issuer="i", audience="a", jwks_url="https://i/keys")


@dataclass(frozen=True)
class FakeKeys:
    """A token is the id of its key."""

    key_ids: tuple[str, ...]
    clock: Clock

    def verify(self, token: str) -> Mapping[str, object]:
        if token not in self.key_ids:
            raise UnknownKey("is signed by another key", field="token")
        now_s = self.clock.now_s()
        return {"sub": "ana", "account": "acme", "role": "viewer", "iat": now_s, "exp": now_s + 60}


@dataclass
class FakeSource:
    clock: Clock
    key_ids: tuple[str, ...] = ("k1",)
    fault: Exception | None = None
    fetches: int = 0
    fetched: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def fetch(self) -> FakeKeys:
        self.fetches += 1
        self.fetched.release()
        if self.fault is not None:
            raise self.fault
        return FakeKeys(self.key_ids, self.clock)


@pytest.fixture
def source(clock: FakeClock) -> FakeSource:
    return FakeSource(clock)


@pytest.fixture
def keys(source: FakeSource, clock: FakeClock) -> ProviderKeys:
    return ProviderKeys(source, CONFIG, "system", clock, THREADS)


def refusal(keys: ProviderKeys, token: str) -> type[IscpError]:
    with pytest.raises((NotAuthenticated, Unavailable)) as refused:
        keys.identify(token)
    return type(refused.value)


def test_who_has_a_token_of_a_known_key_is_known(keys: ProviderKeys, clock: FakeClock) -> None:
    assert keys.turn()
    found = keys.identify("k1")
    assert (found.name, found.known_by, found.account) == ("oidc:ana", KnownBy.OIDC, "acme")
    assert found.expires_at_s == clock.now_s() + 60 + CONFIG.leeway_s


def test_nothing_can_be_said_before_there_are_keys(keys: ProviderKeys, source: FakeSource) -> None:
    assert refusal(keys, "k1") is Unavailable
    source.fault = Unavailable("away")
    assert not keys.turn()
    assert refusal(keys, "k1") is Unavailable


def test_a_key_that_is_not_known_is_refused_once_that_is_certain(
    keys: ProviderKeys, source: FakeSource, clock: FakeClock
) -> None:
    keys.turn()
    assert refusal(keys, "k2") is UnknownKey
    clock.advance(REFETCH_PAUSE_S + 0.1)
    assert refusal(keys, "k2") is Unavailable  # the provider may have it since
    keys.turn()
    assert refusal(keys, "k2") is UnknownKey
    source.key_ids = ("k2",)
    clock.advance(REFETCH_PAUSE_S + 0.1)
    assert refusal(keys, "k2") is Unavailable
    keys.turn()
    assert keys.identify("k2")
    assert refusal(keys, "k1") is UnknownKey  # it was withdrawn


def test_keys_are_good_for_a_time_while_the_provider_is_away(
    keys: ProviderKeys, source: FakeSource, clock: FakeClock
) -> None:
    keys.turn()
    source.fault = Unavailable("away")
    clock.advance(KEYS_VALID_S)
    assert not keys.turn()
    assert keys.identify("k1")
    assert refusal(keys, "k2") is Unavailable  # not: nobody's
    clock.advance(0.1)
    assert refusal(keys, "k1") is Unavailable
    source.fault = None
    keys.turn()
    assert keys.identify("k1")


def known(keys: ProviderKeys, token: str) -> bool:
    try:
        keys.identify(token)
    except (NotAuthenticated, Unavailable):
        return False
    return True


def test_a_token_with_a_new_key_has_the_keys_fetched_again_but_not_too_often() -> None:
    pause_s = 0.3
    source = FakeSource(SystemClock())
    keys = ProviderKeys(source, CONFIG, "system", source.clock, THREADS, pause_s)
    began_s = time.monotonic()
    keys.start()
    try:
        until(lambda: known(keys, "k1"))
        source.key_ids = ("k2",)
        until(lambda: not known(keys, "x") and known(keys, "k2"))  # whatever else comes meanwhile
        assert not known(keys, "k1")
        assert source.fetches <= 1 + (time.monotonic() - began_s) / pause_s
    finally:
        keys.close()
    ended = source.fetches
    time.sleep(2 * pause_s)
    assert source.fetches == ended


def test_what_nobody_has_foreseen_does_not_end_the_thread(keys: ProviderKeys, source: FakeSource) -> None:
    source.fault = RuntimeError("unforeseen")
    keys.start()
    assert source.fetched.acquire(timeout=10)
    assert refusal(keys, "k1") is Unavailable
    keys.close()


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


ENTRY = AuditEntry(1.0, "n", "a", "a", "editor", "id", "token", "p", "/s/Pause", "{}", "r", "OK")


def entries(count: int) -> list[AuditEntry]:
    return [replace(ENTRY, request_id=f"r{number}") for number in range(count)]


def test_entries_are_written_soon_and_in_order() -> None:
    audit = FakeAudit()
    writer = AuditWriter(audit)
    writer.start()
    for each in entries(3):
        writer.add([each])
    until(lambda: audit.entries == entries(3), within_s=10.0)
    writer.close()
    assert writer.lost == 0


def test_what_is_pending_is_written_at_the_end() -> None:
    audit = FakeAudit()
    writer = AuditWriter(audit)
    writer.start()
    writer.add(entries(5))
    writer.close()
    assert audit.entries == entries(5)


def test_a_storage_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    audit = FakeAudit(failures=[StorageError("full")])
    writer = AuditWriter(audit)
    writer.add(entries(2))
    assert not writer.turn()
    assert "audit.failed" in caplog.messages
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 0}
    assert writer.turn()
    assert audit.entries == entries(2)
    assert writer.turn()  # nothing is left
    assert audit.entries == entries(2)


def test_beyond_the_queue_entries_are_counted_and_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    writer = AuditWriter(FakeAudit(), queue_max=2)
    writer.add(entries(5))
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 3}
    lost = [record for record in caplog.records if record.message == "audit.lost"]
    assert [getattr(record, "audit_request_id", "") for record in lost] == ["r2", "r3", "r4"]
    assert all(record.levelno == logging.ERROR for record in lost)


def test_what_no_table_can_hold_is_left_out_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Picky(FakeAudit):
        def append(self, entries: object) -> None:
            given = list(entries)  # type: ignore[call-overload]
            if any(each.request_id == "r2" for each in given):
                raise InvalidRequest("cannot be held")
            self.entries.extend(given)

    audit = Picky()
    writer = AuditWriter(audit)
    writer.add(entries(5))
    assert writer.turn()
    assert [each.request_id for each in audit.entries] == ["r0", "r1", "r3", "r4"]
    assert writer.lost == 1


def test_what_cannot_be_written_at_the_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    writer = AuditWriter(FakeAudit(failures=[StorageError("gone")] * 9))
    writer.start()
    writer.add(entries(2))
    writer.close()
    assert writer.lost == 2
    writer.add(entries(1))
    assert writer.lost == 3


def test_the_queue_is_bounded_by_characters_too(caplog: pytest.LogCaptureFixture) -> None:
    audit = FakeAudit()
    writer = AuditWriter(audit, queue_chars_max=2 * ENTRY.chars + 1_000)
    huge, two = replace(ENTRY, what="x" * 2_000), [ENTRY, ENTRY]
    writer.add([*two, huge])
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 1}
    assert writer.turn()
    writer.add([*two, huge])  # what was written makes room
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 2}


class Hanging(FakeAudit):
    """Its append ends when it is let, with an error if it is given one."""

    def __init__(self, error: StorageError | None = None) -> None:
        super().__init__()
        self.begun, self.go_on, self.error = threading.Event(), threading.Event(), error

    def append(self, entries: Sequence[AuditEntry]) -> None:
        self.begun.set()
        assert self.go_on.wait(20.0)
        if self.error:
            raise self.error
        super().append(entries)


@pytest.mark.parametrize("error", [None, StorageError("gone")])
def test_what_is_being_written_when_a_node_stops_is_lost_only_if_it_fails(
    caplog: pytest.LogCaptureFixture, error: StorageError | None
) -> None:
    audit = Hanging(error)
    writer = AuditWriter(audit, close_s=0.1)
    first, second, third = entries(3)
    writer.add([first])
    writer.start()
    assert audit.begun.wait(10.0)
    writer.add([second])
    writer.close()
    writer.add([third])

    def logged(event: str) -> list[str]:
        return [getattr(each, "audit_request_id", "") for each in caplog.records if each.message == event]

    assert (logged("audit.lost"), logged("audit.unconfirmed"), writer.lost) == (["r1", "r2"], ["r0"], 2)
    audit.go_on.set()
    until(lambda: writer.counters() == {"audit_waiting": 0, "audit_lost": 3 if error else 2}, within_s=10.0)
    assert audit.entries == ([] if error else [first])
    until(lambda: logged("audit.lost") == (["r1", "r2", "r0"] if error else ["r1", "r2"]), within_s=10.0)
    assert "audit.broken" not in caplog.messages


def test_what_was_written_of_a_batch_is_not_written_again() -> None:
    class Picky(FakeAudit):
        """It cannot hold r3, and fails once after it has held something."""

        def append(self, entries: Sequence[AuditEntry]) -> None:
            if any(each.request_id == "r3" for each in entries):
                raise InvalidRequest("cannot be held")
            if self.entries and self.failures:
                raise self.failures.pop()
            self.entries.extend(entries)

    audit = Picky(failures=[StorageError("gone")])
    writer = AuditWriter(audit)
    writer.add(entries(4))
    assert not writer.turn()
    assert writer.counters() == {"audit_waiting": 2, "audit_lost": 0}
    assert writer.turn()
    assert [each.request_id for each in audit.entries] == ["r0", "r1", "r2"]
    assert writer.counters() == {"audit_waiting": 0, "audit_lost": 1}
