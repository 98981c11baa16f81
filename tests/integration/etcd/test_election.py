"""One owner at a time, and what a deposed one can still do: nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys, Put
from iscp.etcd.owner_keys import EtcdElection
from iscp.etcd.server import EtcdServer
from iscp.model.values.errors import NotOwner
from iscp.model.values.ids import Leader
from iscp.ports.cluster import Election
from iscp.ports.system import Clock

Connect = Callable[..., EtcdClient]
Eventually = Callable[..., float]
Signal = Callable[[EtcdServer], None]
TTL_S = 2


class Candidate:
    """One node's part in an election, and what was reported to it."""

    def __init__(self, node_id: str, client: EtcdClient, keys: Keys, clock: Clock, ttl_s: float) -> None:
        self.node_id = node_id
        self.election = EtcdElection(client, keys, clock, lease_ttl_s=ttl_s, margin_s=0.5)
        self.told: list[Leader | None] = []

    def run(self) -> Candidate:
        port: Election = self.election
        port.campaign(self.node_id, self.told.append, lambda: self.told.append(None))
        return self

    @property
    def leads(self) -> bool:
        return bool(self.told) and self.told[-1] is not None

    @property
    def term(self) -> Leader:
        assert self.told
        assert self.told[-1] is not None
        return self.told[-1]


@pytest.fixture
def candidate(client: EtcdClient, clock: Clock, prefix: str) -> Iterator[Callable[..., Candidate]]:
    all_of_them: list[Candidate] = []

    def made(node_id: str, through: EtcdClient = client, ttl_s: float = TTL_S) -> Candidate:
        all_of_them.append(Candidate(node_id, through, Keys(prefix), clock, ttl_s))
        return all_of_them[-1]

    yield made
    for each in all_of_them:
        each.election.resign()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("etcd-")]


def test_the_first_leads_and_the_next_follows_when_it_resigns(
    candidate: Callable[..., Candidate], eventually: Eventually
) -> None:
    a, b = candidate("a"), candidate("b")
    assert a.election.leader() is None
    a.run()
    eventually(lambda: a.leads)
    b.run()
    assert b.election.leader() == a.term == Leader("a", a.term.revision)
    assert not b.told
    term = a.term
    a.election.resign()
    assert a.told == [term, None]
    assert eventually(lambda: b.leads) < 1
    assert b.term.revision > term.revision


def test_an_owner_that_gives_way_stands_again_behind_those_who_wait(
    candidate: Callable[..., Candidate], client: EtcdClient, prefix: str, eventually: Eventually
) -> None:
    a, b = candidate("a").run(), candidate("b")
    eventually(lambda: a.leads)
    assert a.election.confirmed_until_s(a.term.revision) > 0
    assert a.election.confirmed_until_s(a.term.revision - 1) < 0
    b.run()
    eventually(lambda: len(client.list_prefix(Keys(prefix).candidates).items) == 2)
    term = a.term
    a.election.give_way(term.revision - 1)
    assert a.leads, "of a term that is over"
    a.election.give_way(term.revision)
    eventually(lambda: b.leads)
    assert a.told == [term, None]
    assert a.election.confirmed_until_s(term.revision) < 0
    eventually(lambda: len(client.list_prefix(Keys(prefix).candidates).items) == 2)
    b.election.give_way(b.term.revision)
    eventually(lambda: a.leads)
    assert a.term.revision > term.revision


def test_an_owner_that_dies_is_followed_when_its_lease_has_ended(
    candidate: Callable[..., Candidate],
    connect: Connect,
    shared_server: EtcdServer,
    eventually: Eventually,
) -> None:
    """Its client is cut off, as kill -9 does: no renewal, no farewell."""
    connection = connect(shared_server.endpoint)
    a, b = candidate("a", connection).run(), candidate("b")
    eventually(lambda: a.leads)
    b.run()
    connection.close()
    failover_s = eventually(lambda: b.leads)
    # Renewed at most TTL/3 before; etcd looks for expired leases every half second.
    assert failover_s < TTL_S + 1.5
    eventually(lambda: not a.leads)


def test_a_deposed_owner_gets_an_error_and_its_fenced_writes_fail(
    candidate: Callable[..., Candidate], client: EtcdClient, prefix: str, eventually: Eventually
) -> None:
    """The key is deleted by somebody else's hand; whether the owner has noticed makes no difference to the write."""
    a, key = candidate("a").run(), f"{prefix}owned"
    eventually(lambda: a.leads)
    term = a.term
    assert a.election.write_fenced(term, Put(key, b"1")) > term.revision
    client.delete(Keys(prefix).candidates, prefix=True)
    with pytest.raises(NotOwner):
        a.election.write_fenced(term, Put(key, b"2"))
    eventually(lambda: a.told[:2] == [term, None])
    eventually(lambda: a.leads)  # it runs again, for a new term
    assert a.term.revision > term.revision
    with pytest.raises(NotOwner):
        a.election.write_fenced(term, Put(key, b"3"))
    a.election.write_fenced(a.term, Put(key, b"4"))
    found = client.get(key)
    assert found is not None
    assert (found.value, found.version) == (b"4", 2)


def test_a_waiter_whose_lease_has_ended_is_not_elected(
    candidate: Callable[..., Candidate], client: EtcdClient, prefix: str, eventually: Eventually
) -> None:
    """etcd's own Campaign reports success to it; here the term that it gets is of a key that it has."""
    a, b = candidate("a").run(), candidate("b")
    eventually(lambda: a.leads)
    b.run()
    waiting = Keys(prefix).candidates
    eventually(lambda: len(client.list_prefix(waiting).items) == 2)
    lost = max(client.list_prefix(waiting).items, key=lambda kv: kv.create_revision)
    # Both at once: b learns of its own end and of a's together.
    client.revoke(lost.lease_id)
    a.election.resign()
    eventually(lambda: b.leads)
    assert b.election.leader() == b.term
    assert lost.create_revision not in [leader.revision for leader in b.told if leader is not None]


def test_never_two_at_once_while_terms_change_hands(
    candidate: Callable[..., Candidate], client: EtcdClient, prefix: str, eventually: Eventually
) -> None:
    """Each term that is reported was the oldest key at some time: revisions rise, and no two nodes share one."""
    nodes = [candidate(name).run() for name in "abc"]
    election, leaders = nodes[0].election, []
    for _ in range(5):
        eventually(lambda: [node.term for node in nodes if node.leads] == [election.leader()])
        leaders.append(next(node.term for node in nodes if node.leads))
        oldest = min(client.list_prefix(Keys(prefix).candidates).items, key=lambda kv: kv.create_revision)
        client.revoke(oldest.lease_id)
        eventually(lambda known=leaders[-1]: all(known not in node.told[-1:] for node in nodes))
    terms = [leader for node in nodes for leader in node.told if leader is not None]
    assert set(leaders) <= set(terms)
    assert len({leader.revision for leader in terms}) == len(terms)
    assert [leader.revision for leader in leaders] == sorted(leader.revision for leader in leaders)
    for node in nodes:
        assert all((first is None) != (second is None) for first, second in zip(node.told, node.told[1:], strict=False))


def test_an_owner_whose_server_freezes_stops_by_itself_and_leads_again_afterwards(
    server: EtcdServer,
    connect: Connect,
    candidate: Callable[..., Candidate],
    freeze: Signal,
    thaw: Signal,
    eventually: Eventually,
) -> None:
    a = candidate("a", connect(server.endpoint, timeout_s=1.0)).run()
    eventually(lambda: a.leads)
    term = a.term
    freeze(server)
    assert eventually(lambda: not a.leads) < TTL_S
    threading.Event().wait(1.0)
    assert a.told == [term, None]
    thaw(server)
    eventually(lambda: a.leads)
    assert a.term.revision > term.revision
    a.election.resign()


def test_an_owner_whose_server_was_away_leads_again_without_waiting_for_its_former_key(
    server: EtcdServer,
    clock: Clock,
    connect: Connect,
    candidate: Callable[..., Candidate],
    eventually: Eventually,
) -> None:
    """A restarted etcd gives every lease its time again: the former key is removed, not waited for."""
    a = candidate("a", connect(server.endpoint, timeout_s=0.5), ttl_s=9)
    a.run()
    eventually(lambda: a.leads)
    server.kill()
    a.election.resign()
    assert not a.leads
    back = EtcdServer.start(server.data_dir, server.client_port, clock=clock)
    a.run()
    assert eventually(lambda: a.leads) < 4
    a.election.resign()
    back.kill()
