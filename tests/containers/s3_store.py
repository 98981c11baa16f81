"""A store with the S3 API in a container: versitygw, which checks signatures and keeps conditions of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

import obstore
from obstore.store import S3Store
from testcontainers.core.container import DockerContainer

from iscp.system.http_exchange import free_port
from tests.containers.images import publish
from tests.fakes.s3 import CREDENTIALS, FakeS3, asking

PORT = 7070
READY_WAIT_S = 60.0
POLL_S = 0.1


@contextmanager
def s3_store(image: str) -> Iterator[FakeS3]:
    """With an empty bucket, and configured for as the fake is; this process goes to it, and children that it starts."""
    store = FakeS3(free_port())
    container = DockerContainer(image).with_env("ROOT_ACCESS_KEY", CREDENTIALS["AWS_ACCESS_KEY_ID"])
    container.with_env("ROOT_SECRET_KEY", CREDENTIALS["AWS_SECRET_ACCESS_KEY"])
    container.with_command(["--port", f":{PORT}", "--quiet", "--keep-alive", "posix", "/data"])
    publish(container, PORT, store.port)
    with container, asking(store):
        _make_bucket(store, container)
        yield store


def _make_bucket(store: FakeS3, container: DockerContainer) -> None:
    """By a signed request, which the store checks."""
    signed = obstore.sign(S3Store(store.bucket), "PUT", "", timedelta(minutes=5))
    deadline_s = time.monotonic() + READY_WAIT_S
    while True:
        try:
            build_opener(ProxyHandler({})).open(Request(signed, method="PUT"), timeout=READY_WAIT_S).close()
            return
        except (URLError, ConnectionError):
            assert time.monotonic() < deadline_s, container.get_logs()
            time.sleep(POLL_S)
