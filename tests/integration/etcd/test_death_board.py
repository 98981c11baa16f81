"""What the process of one node has died of is known to all, and outlasts what etcd or a node forgets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys
from iscp.etcd.owner_keys import JOBS_SHARED_MAX, EtcdDeathBoard
from iscp.model.job.start_rule import Deaths
from iscp.system.threads import THREADS
from tests.fakes.waiting import until


@contextmanager
def board(client: EtcdClient, prefix: str, node_id: str) -> Iterator[EtcdDeathBoard]:
    with closing(EtcdDeathBoard(client, Keys(prefix), node_id, THREADS)) as made:
        made.start()
        yield made


def test_each_node_has_those_of_the_others(client: EtcdClient, prefix: str) -> None:
    died = {"j": Deaths(1, 5.0, "Aborted", kills=2, account="acme"), "k": Deaths(forgiven_at_s=3.0)}
    with board(client, prefix, "n1") as first, board(client, prefix, "n2") as second:
        first.put(died)
        until(lambda: bool(second.others()))
        assert second.others() == [{"j": died["j"]}]
        assert not first.others()
        first.put({"k": died["k"]})
        until(lambda: not second.others())
        assert client.get(Keys(prefix).death("n1")) is None
        first.put(died)
    with board(client, prefix, "n3") as later:
        until(lambda: later.others() == [{"j": died["j"]}])


def test_a_key_that_is_lost_is_written_again_and_the_last_of_many_are_shared(client: EtcdClient, prefix: str) -> None:
    many = {f"j{number}": Deaths(1, float(number + 1), "Aborted") for number in range(JOBS_SHARED_MAX + 5)}
    with board(client, prefix, "n1") as first:
        client.put(Keys(prefix).death("n0"), b'{"format": 1, "jobs": {"j": {}}}')
        first.put(many)
        until(lambda: len(first._known) == 2)
        client.delete(Keys(prefix).death("n1"))
        until(lambda: len(first._known) == 1)
        first._watch.read_again()
        until(lambda: client.get(Keys(prefix).death("n1")) is not None)
    with board(client, prefix, "n2") as second:
        until(lambda: bool(second.others()))
        assert sorted(second.others()[0]) == sorted(f"j{number + 5}" for number in range(JOBS_SHARED_MAX))


def test_what_cannot_be_read_is_passed_over(client: EtcdClient, prefix: str) -> None:
    unread = (b"\xff", b"[]", b"{}", b'{"format": 2, "jobs": {}}', b'{"format": 1, "jobs": {"j": {"count": "1"}}}')
    for number, value in enumerate((*unread, b"[" * 9_999)):
        client.put(Keys(prefix).death(f"x{number}"), value)
    client.put(Keys(prefix).death("n9"), b'{"format": 1, "jobs": {}}')
    with board(client, prefix, "n1") as first, board(client, prefix, "n2") as second:
        second.put({"j": Deaths(1, 5.0, "Aborted")})
        until(lambda: first.others() == [{"j": Deaths(1, 5.0, "Aborted")}])
