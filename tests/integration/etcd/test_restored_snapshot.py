"""An etcd that was put back by its own tools: what nodes knew of it since is gone, and they notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings, Keys
from iscp.etcd.member_keys import EtcdMembership
from iscp.etcd.server import EtcdServer
from iscp.model.values.ids import Moment, NodeRecord
from iscp.ports.system import Clock
from iscp.system.threads import THREADS
from tests.fakes.etcd_backup import ETCD, TOKEN, restore, save, start_again

KEYS, TTL_S = Keys("/c"), 20.0
"""Of leases that outlive the restore."""


class Followed:
    """A store that is followed, its members, and its servers, of which one runs at a time."""

    def __init__(self, server: EtcdServer, client: EtcdClient, clock: Clock, stack: ExitStack) -> None:
        self.server, self.client, self._clock, self._stack = server, client, clock, stack
        self.seen: list[tuple[list[str], Moment]] = []
        self.observer = self.member()
        stack.callback(
            self.observer.watch(lambda members, at: self.seen.append(([each.node_id for each in members], at)))
        )

    def member(self) -> EtcdMembership:
        made = EtcdMembership(self.client, KEYS, self._clock, THREADS, lease_ttl_s=TTL_S, margin_s=0.5)
        self._stack.callback(made.deregister)
        return made

    @property
    def there(self) -> list[str]:
        return self.seen[-1][0] if self.seen else []

    def restore(self, snapshot: Path, token: str, changes: int) -> None:
        """`changes` are made before anybody who followed the store looks at it again."""
        self.server.kill()
        restore(snapshot, self.server.data_dir, self.server.peer_port, token)
        if changes:
            aside = EtcdServer.start(self.server.data_dir, clock=self._clock, binary=ETCD)
            with EtcdClient(EtcdSettings((aside.endpoint,)), self._clock) as client:
                for _ in range(changes):
                    client.put("/elsewhere", b"")
            aside.stop()
        self.server = start_again(self.server, self._clock)


@pytest.fixture
def followed(tmp_path: Path, clock: Clock, connect: Callable[..., EtcdClient]) -> Iterator[Followed]:
    server = EtcdServer.start(tmp_path / "etcd", clock=clock, binary=ETCD)
    with ExitStack() as stack:
        made = Followed(server, connect(server.endpoint), clock, stack)
        yield made
    made.server.kill()


def record(node_id: str, epoch: int) -> NodeRecord:
    return NodeRecord(node_id, epoch, address="127.0.0.1:7000", pid=42, version="0.1.0", started_at_s=1.5)


@pytest.mark.parametrize(
    ("token", "changes"),
    [
        pytest.param(TOKEN, 50, id="same cluster, overtaken"),
        pytest.param("another", 0, id="another cluster"),
        pytest.param(TOKEN, 0, id="same cluster", marks=pytest.mark.full),
        pytest.param("another", 50, id="another cluster, overtaken", marks=pytest.mark.full),
    ],
)
def test_a_snapshot_that_was_put_back_is_noticed(
    followed: Followed, tmp_path: Path, eventually: Callable[..., float], token: str, changes: int
) -> None:
    """A node that it knows goes on under its lease; one that came since has none any more, and its epoch was lost."""
    old, new = followed.member(), followed.member()
    kept = old.register(record("old", old.next_epoch("old")))
    snapshot = save(followed.server.endpoint, tmp_path / "snapshot.db")
    lost = new.register(record("new", new.next_epoch("new")))
    eventually(lambda: followed.there == ["new", "old"])
    before = followed.seen[-1][1]

    followed.restore(snapshot, token, changes)

    eventually(lambda: followed.there == ["old"])
    assert followed.seen[-1][1].restores == before.restores + 1
    assert followed.observer.members()[1] >= followed.seen[-1][1]
    eventually(lambda: lost.gone, within_s=TTL_S)
    assert not kept.gone
    assert new.next_epoch("new", above=1) == 2
    new.register(record("new", 2))
    eventually(lambda: followed.there == ["new", "old"])
    assert followed.seen[-1][1].restores == before.restores + 1
