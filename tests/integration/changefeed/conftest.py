"""Changefeeds on real tables and a real etcd."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from iscp import changefeed
from iscp.adapters.clock import SystemClock
from iscp.adapters.etcd.server import EtcdServer
from iscp.changefeed import Changefeed
from tests.fakes.changefeed_program import SCHEMA

Opened = Callable[..., Changefeed]


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server that no test disturbs; each feed has keys of its own."""
    server = EtcdServer.start(
        tmp_path_factory.mktemp("etcd"), clock=SystemClock(), extra_args=("--election-timeout=1000",)
    )
    yield server.endpoint
    server.stop()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    changefeed.create(tmp_path / "feed", SCHEMA, shards=2)
    return str(tmp_path / "feed")


@pytest.fixture
def opened(uri: str) -> Iterator[Opened]:
    """Feeds that are closed when the test ends."""
    with ExitStack() as stack:

        def open_feed(etcd: str | None = None, **options: Any) -> Changefeed:
            return stack.enter_context(changefeed.open(uri, etcd, **options))

        yield open_feed


@pytest.fixture
def eventually() -> Callable[..., float]:
    """Wait until a condition holds; the seconds that it took. Fails after `within_s`."""

    def wait(condition: Callable[[], object], within_s: float = 60.0) -> float:
        start_s = time.monotonic()
        while not condition():
            assert time.monotonic() - start_s < within_s, f"not within {within_s} s"
            time.sleep(0.01)
        return time.monotonic() - start_s

    return wait
