"""etcd of three members, each in a container; they reach each other by one network, and clients reach them by another.

So a member that is cut off from the others still answers its clients: what it says to them is what is tried.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.request import ProxyHandler, Request, build_opener

from docker.models.containers import Container
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from iscp.system.http_exchange import free_port
from tests.containers.images import publish
from tests.fakes.waiting import until

NAMES = ("m0", "m1", "m2")
CLIENT_PORT, PEER_PORT = 2379, 2380
ELECTION_MS = 500
READY_WAIT_S = 60.0
STATUS_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    port: int
    container: Container

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def kill(self) -> None:
        self.container.kill("SIGKILL")
        self.container.wait()

    def start(self) -> None:
        self.container.start()

    def freeze(self) -> None:
        self.container.pause()

    def thaw(self) -> None:
        self.container.unpause()

    def status(self) -> tuple[int, int]:
        """Its own id, and that of the member that it holds for raft's leader (0: none). Raises OSError."""
        # As an etcd of its own version says it: the client of iscp has no need to know who leads among members.
        request = Request(f"http://{self.endpoint}/v3/maintenance/status", data=b"{}", method="POST")
        with build_opener(ProxyHandler({})).open(request, timeout=STATUS_WAIT_S) as answer:
            said = json.load(answer)
        return int(said["header"]["member_id"]), int(said.get("leader", 0))


@dataclass(frozen=True, slots=True)
class EtcdMembers:
    members: tuple[Member, ...]
    peers: Network

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def endpoints_from(self, first: int) -> tuple[str, ...]:
        """All, that member's first: it is the one that a client uses while it answers."""
        return self.endpoints[first:] + self.endpoints[:first]

    def leader(self) -> Member:
        """Raft's, when a majority agrees on it; waits for that."""
        found: list[Member] = []

        def agreed() -> bool:
            found[:] = self._followed()
            return bool(found)

        until(agreed, within_s=READY_WAIT_S)
        return found[0]

    def follower(self) -> Member:
        leader = self.leader()
        return next(member for member in self.members if member is not leader)

    def _followed(self) -> list[Member]:
        ids: dict[int, Member] = {}
        votes: list[int] = []
        for member in self.members:
            try:
                own, leader = member.status()
            except OSError:
                continue
            ids[own] = member
            votes.append(leader)
        return [ids[each] for each in ids if votes.count(each) > len(self.members) // 2]

    def cut(self, member: Member) -> None:
        """From the other members, in both directions; clients reach it all the same."""
        self.peers._unwrap_network.disconnect(member.container)

    def heal(self, member: Member) -> None:
        self.peers.connect(str(member.container.id), [member.name])

    def await_all(self) -> None:
        """Until every member follows the same leader."""

        def agree() -> bool:
            try:
                leaders = {member.status()[1] for member in self.members}
            except OSError:
                time.sleep(0.05)
                return False
            return len(leaders) == 1 and 0 not in leaders

        until(agree, within_s=READY_WAIT_S)


@contextmanager
def etcd_members(image: str) -> Iterator[EtcdMembers]:
    """Three that serve; they are removed with what they hold in the end."""
    with ExitStack() as stack:
        peers = stack.enter_context(Network(docker_network_kw={"internal": True}))
        clients = stack.enter_context(Network())
        cluster = ",".join(f"{name}=http://{name}:{PEER_PORT}" for name in NAMES)
        started = []
        for name in NAMES:
            port = free_port()
            container = DockerContainer(image).with_network(peers).with_network_aliases(name)
            publish(container, CLIENT_PORT, port)
            container.with_command(_arguments(name, port, cluster))
            stack.enter_context(container)
            clients.connect(container.get_container_id())
            started.append(Member(name, port, container.get_wrapped_container()))
        made = EtcdMembers(tuple(started), peers)
        made.await_all()
        yield made


def _arguments(name: str, port: int, cluster: str) -> list[str]:
    return [
        *("--name", name, "--data-dir", "/data/member"),
        *("--listen-client-urls", f"http://0.0.0.0:{CLIENT_PORT}", "--listen-peer-urls", f"http://0.0.0.0:{PEER_PORT}"),
        *("--advertise-client-urls", f"http://127.0.0.1:{port}"),
        *("--initial-advertise-peer-urls", f"http://{name}:{PEER_PORT}", "--initial-cluster", cluster),
        *("--heartbeat-interval", str(ELECTION_MS // 10), "--election-timeout", str(ELECTION_MS)),
        *("--logger", "zap", "--log-level", "warn"),
    ]
