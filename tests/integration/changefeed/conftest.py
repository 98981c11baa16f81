"""Changefeeds on real tables and a real etcd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import from_url

from iscp import changefeed
from iscp.changefeed import Changefeed
from iscp.etcd.server import EtcdServer
from iscp.system.threads import SystemClock
from tests.fakes.changefeed_program import SCHEMA
from tests.fakes.waiting import until

Opened = Callable[..., Changefeed]


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a server that no test disturbs; each feed has keys of its own."""
    server = EtcdServer.start(
        tmp_path_factory.mktemp("etcd"), clock=SystemClock(), extra_args=("--election-timeout=1000",)
    )
    yield server.endpoint
    server.stop()


ON_S3_TOO = pytest.mark.parametrize("store", ["local", "s3"], indirect=True)
ON_S3_IN_FULL = pytest.mark.parametrize("store", ["local", pytest.param("s3", marks=pytest.mark.full)], indirect=True)


def paths_below(uri: str) -> set[str]:
    """Of files, wherever the feed is."""
    if uri.startswith("s3://"):
        return {meta["path"] for found in obstore.list(from_url(uri)) for meta in found}
    return {str(path) for path in Path(uri).rglob("*") if path.is_file()}


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "local"))


@pytest.fixture
def uri(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    uri = request.getfixturevalue("s3").uri(f"{tmp_path.name}/feed") if store == "s3" else str(tmp_path / "feed")
    changefeed.create(uri, SCHEMA, shards=2)
    return uri


@pytest.fixture
def opened(uri: str) -> Iterator[Opened]:
    """Feeds that are closed when the test ends."""
    with ExitStack() as stack:

        def open_feed(etcd: str | None = None, **options: Any) -> Changefeed:
            return stack.enter_context(changefeed.open(uri, etcd, **options))

        yield open_feed


@pytest.fixture
def eventually() -> Callable[..., float]:
    return partial(until, within_s=60.0)


def row(number: int) -> dict[str, object]:
    return {"who": "a", "txn": 0, "number": number}


def told(feed: Changefeed) -> list[int]:
    return [each["number"] for each in feed.read().rows["row"].to_pylist()]
