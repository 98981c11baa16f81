"""S3 in a process of its own (`tests.fakes.s3_program`), and how those that go there are configured for it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import obstore
import pytest
from obstore.store import from_url

from iscp.model.settings.config import BucketConfig, S3Config
from iscp.storage.s3_settings import s3_environ
from iscp.system.child_process import end, spawn, tail
from iscp.system.http_exchange import free_port

START_WAIT_S = 60.0
POLL_S = 0.1
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "iscp", "AWS_SECRET_ACCESS_KEY": "of-no-use-elsewhere"}


SECRET = "hush-of-"
"""What the secrets of buckets' own keys begin with."""

WITH_TOKEN = "other"
"""The bucket whose key has a token."""


@dataclass(frozen=True, slots=True)
class FakeS3:
    """A store with one bucket, and those of `files`, each of which its own key alone reaches; it need not be up."""

    port: int
    bucket: str = "lake"
    files: Mapping[str, str] = field(default_factory=dict)
    """Files with the keys of buckets."""

    @classmethod
    def with_keys(cls, port: int, directory: Path, buckets: Mapping[str, str]) -> FakeS3:
        """`buckets`: whose key the file of each has, its own or that of another one. They are put in `directory`."""
        files = {}
        for name, owner in buckets.items():
            key_id, token = _key_of(owner)
            file = directory / f"{name}.keys"
            lines = ["[default]", f"aws_access_key_id = {key_id}", f"aws_secret_access_key = {SECRET}{owner}"]
            file.write_text("\n".join([*lines, *([f"aws_session_token = {token}"] if token else [])]))
            files[name] = str(file)
        return cls(port, files=files)

    @property
    def keys(self) -> dict[str, list[str]]:
        """Who reaches which bucket: an access key and a token. Nothing: whoever likes reaches all."""
        own = {name: _key_of(name) for name in self.files}
        return own | ({self.bucket: [CREDENTIALS["AWS_ACCESS_KEY_ID"], ""]} if own else {})

    @property
    def config(self) -> S3Config:
        buckets = {name: BucketConfig(credentials_file=file) for name, file in self.files.items()}
        return S3Config(region="us-east-1", endpoint=f"http://127.0.0.1:{self.port}", buckets=buckets)

    @property
    def environ(self) -> dict[str, str]:
        """As a node has it: what follows from its configuration, and who it is."""
        return CREDENTIALS | s3_environ(self.config)

    @property
    def settings(self) -> dict[str, str]:
        """Variables that configure a node for it."""
        return CREDENTIALS | {
            "ISCP_STORAGE__S3__REGION": self.config.region,
            "ISCP_STORAGE__S3__ENDPOINT": self.config.endpoint,
            "ISCP_STORAGE__S3__BUCKETS": json.dumps(
                {name: {"credentials_file": file} for name, file in self.files.items()}
            ),
        }

    def uri(self, key: str, bucket: str = "") -> str:
        return f"s3://{bucket or self.bucket}/{key}"


def _key_of(bucket: str) -> list[str]:
    return [f"key-of-{bucket}", f"{SECRET}token" if bucket == WITH_TOKEN else ""]


@contextmanager
def s3_server(
    log: Path,
    server: FakeS3 | None = None,
    *,
    fault: str = "",
    delay_s: float = 0.0,
    on_start: Callable[[int], object] = lambda pid: None,
) -> Iterator[FakeS3]:
    """A server with an empty bucket, for as long as it is needed; for its `fault` see the program.

    `delay_s`: how long it waits before each answer. `on_start` takes its process id.
    """
    server = server or FakeS3(free_port())
    program = str(Path(__file__).with_name("s3_program.py"))
    command = [sys.executable, program, str(server.port), str(delay_s), *filter(None, [fault])]
    child = spawn(command, log, os.environ | {"FAKE_S3_KEYS": json.dumps(server.keys)})
    try:
        deadline_s = time.monotonic() + START_WAIT_S
        while True:
            try:
                for bucket in (server.bucket, *server.files):
                    request = Request(f"{server.config.endpoint}/{bucket}", method="PUT")
                    urlopen(request, timeout=START_WAIT_S).close()
                break
            except (URLError, ConnectionError):
                assert child.poll() is None, tail(log)
                assert time.monotonic() < deadline_s, f"no S3 within {START_WAIT_S:g} s: {tail(log)}"
                time.sleep(POLL_S)
        on_start(child.pid)
        yield server
    finally:
        end(child, wait_s=0.1)


@contextmanager
def asking(server: FakeS3) -> Iterator[None]:
    """This process, and children that it starts, go to `server`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ.items():
            patch.setenv(name, value)
        yield


def delete_all(uri: str) -> None:
    """What lies at a place on S3."""
    store = from_url(uri)
    for objects in obstore.list(store):
        obstore.delete(store, [each["path"] for each in objects])
