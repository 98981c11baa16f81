"""Real etcd servers on the loopback interface."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.etcd.server import EtcdServer
from iscp.system.threads import SystemClock
from tests.fakes.waiting import until

BATCH_S = 0.3


@pytest.fixture(scope="session")
def clock() -> SystemClock:
    return SystemClock()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory, clock: SystemClock) -> Iterator[EtcdServer]:
    """For tests that leave the server alone; each uses a prefix of its own.

    With etcd's default election timeout, on which the shortest TTL that it grants depends.
    """
    server = EtcdServer.start(tmp_path_factory.mktemp("etcd"), clock=clock, extra_args=("--election-timeout=1000",))
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path, clock: SystemClock) -> Iterator[EtcdServer]:
    """For tests that kill, freeze or wipe it."""
    server = EtcdServer.start(tmp_path / "etcd", clock=clock)
    yield server
    server.kill()


@pytest.fixture
def connect(clock: SystemClock) -> Iterator[Callable[..., EtcdClient]]:
    """Clients that are closed when the test ends."""
    with ExitStack() as stack:

        def connected(*endpoints: str, timeout_s: float = 5.0) -> EtcdClient:
            settings = EtcdSettings(endpoints, timeout_s=timeout_s)
            return stack.enter_context(EtcdClient(settings, clock))

        yield connected


@pytest.fixture
def client(shared_server: EtcdServer, connect: Callable[..., EtcdClient]) -> EtcdClient:
    return connect(shared_server.endpoint)


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}/"


@pytest.fixture
def eventually() -> Callable[..., float]:
    return partial(until, within_s=10.0)


@pytest.fixture
def kill_9() -> Callable[[EtcdServer], None]:
    """SIGKILL, once all that was written is in the server's database.

    etcd 3.5.0 to 3.5.2 can forget an acknowledged write that is younger than that (etcd#13766; a key that was
    missing once after a kill on a busy machine fits), and it is not etcd that is tested.
    """

    def killed(server: EtcdServer) -> None:
        time.sleep(BATCH_S)
        server.kill()

    return killed


@pytest.fixture
def freeze() -> Callable[[EtcdServer], None]:
    return lambda server: os.kill(server.pid, signal.SIGSTOP)


@pytest.fixture
def thaw() -> Callable[[EtcdServer], None]:
    return lambda server: os.kill(server.pid, signal.SIGCONT)
