"""Containers for all tests of this directory; without a socket, or without Go, they are skipped, and say so."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import EtcdSettings
from iscp.spark.jvm_launch import default_cache_dir
from iscp.system.threads import SystemClock
from tests.containers.engine import find_engine, use_engine
from tests.containers.etcd_members import EtcdMembers, etcd_members
from tests.containers.go_programs import NotBuiltError, build
from tests.containers.images import make_image
from tests.containers.s3_store import s3_store
from tests.fakes.s3 import FakeS3, delete_all
from tests.race.conftest import delta_rs, jvms, pool

__all__ = ["delta_rs", "jvms", "pool"]


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    address, reason = find_engine(os.environ, Path.home())
    if address is None:
        pytest.skip(reason)
    client = use_engine(address)
    yield client
    client.close()


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient) -> Callable[[str], str]:
    """The image of a program, by the directory that says what it is built from."""

    def made(directory: str) -> str:
        try:
            program = build(directory, default_cache_dir(os.environ))
        except NotBuiltError as reason:
            pytest.skip(str(reason))
        try:
            name = make_image(engine, program)
            engine.containers.run(name, ["--version"], remove=True)
        except DockerException as error:
            pytest.skip(f"the containers' engine runs none here: {error}")
        return name

    return made


@pytest.fixture(scope="session")
def shared_members(image: Callable[[str], str]) -> Iterator[EtcdMembers]:
    with etcd_members(image("etcd")) as members:
        yield members


@pytest.fixture
def members(shared_members: EtcdMembers) -> EtcdMembers:
    """All of them well; a test leaves them so."""
    shared_members.await_all()
    return shared_members


@pytest.fixture(scope="session")
def s3_up(image: Callable[[str], str]) -> Iterator[FakeS3]:
    with s3_store(image("s3")) as store:
        yield store


@pytest.fixture
def s3(s3_up: FakeS3) -> FakeS3:
    """Whose bucket is empty."""
    delete_all(s3_up.uri(""))
    return s3_up


@pytest.fixture
def uri(s3: FakeS3, request: pytest.FixtureRequest) -> str:
    return s3.uri(f"tables/{request.node.name}")


@pytest.fixture
def connect() -> Iterator[Callable[..., EtcdClient]]:
    """Clients that are closed when the test ends."""
    with ExitStack() as stack:

        def connected(*endpoints: str, timeout_s: float = 5.0) -> EtcdClient:
            return stack.enter_context(EtcdClient(EtcdSettings(endpoints, timeout_s=timeout_s), SystemClock()))

        yield connected


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/{request.node.name}/"
