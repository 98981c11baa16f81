"""The programs that containers and tests run, built by Go from pinned modules, once: the cache keeps them.

`python -m tests.containers.go_programs` builds those of containers, and with names those.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from iscp.spark.jvm_launch import default_cache_dir

SOURCES = Path(__file__).with_name("programs")
NAMES = {"etcd": "etcd", "s3": "versitygw", "current_etcd": "etcd"}
"""Directories with a go.mod, and what their tool's program is named."""

IN_CONTAINERS = ("etcd", "s3")
CURRENT_ETCD = "current_etcd"
"""What tests start instead of PyPI's etcd, which has known faults, wherever it was built before they begin."""

BUILD_WAIT_S = 900.0
"""For both: two minutes of processor time, and what Go fetches. Then the build is ended, and its tests are skipped."""

ENVIRON = {"CGO_ENABLED": "0", "GOOS": "linux", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"}


class NotBuiltError(Exception):
    """A program is not there, and this machine cannot build it: says why."""


def kept(cache: Path, directory: str) -> Path:
    """Where it is once it was built: named for what it is built from."""
    source = SOURCES / directory
    digest = hashlib.sha256(b"".join((source / name).read_bytes() for name in ("go.mod", "go.sum")))
    return cache / f"containers-{directory}-{digest.hexdigest()[:16]}" / NAMES[directory]


def current_etcd() -> Path | None:
    """Where it is, if it was built."""
    program = kept(default_cache_dir(os.environ), CURRENT_ETCD)
    return program if program.exists() else None


def build(directory: str, cache: Path) -> Path:
    """Its path. Raises NotBuiltError."""
    program = kept(cache, directory)
    if program.exists():
        return program
    if shutil.which("go") is None:
        raise NotBuiltError(f"{program.name} is built by Go, which is not on the PATH")
    cache.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + BUILD_WAIT_S
    with (cache / "containers.lock").open("w") as lock:  # two runs would share neither work nor memory
        _lock(lock.fileno(), deadline_s)
        if not program.exists():
            _build(directory, program, deadline_s - time.monotonic())
    return program


def _lock(file: int, deadline_s: float) -> None:
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline_s:
            raise NotBuiltError(f"another process has been building for {BUILD_WAIT_S:g} s")
        time.sleep(0.2)


def _build(directory: str, program: Path, wait_s: float) -> None:
    with tempfile.TemporaryDirectory(prefix=".containers-", dir=program.parents[1]) as scratch:
        made = Path(scratch) / "made" / program.name
        command = ["go", "build", "-trimpath", "-ldflags", "-s -w", "-o", str(made), _tool(directory)]
        try:
            subprocess.run(
                command,
                cwd=SOURCES / directory,
                env=os.environ | ENVIRON,
                capture_output=True,
                text=True,
                timeout=max(wait_s, 1.0),
                check=True,
            )
        except subprocess.TimeoutExpired as error:
            raise NotBuiltError(f"{program.name} was not built within {BUILD_WAIT_S:g} s") from error
        except subprocess.CalledProcessError as error:
            raise NotBuiltError(f"{program.name} cannot be built: {error.stderr.strip()[-500:]}") from error
        made.parent.rename(program.parent)


def _tool(directory: str) -> str:
    lines = (SOURCES / directory / "go.mod").read_text().splitlines()
    (tool,) = (line.removeprefix("tool ") for line in lines if line.startswith("tool "))
    return tool


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # which ends Go too
    try:
        for directory in sys.argv[1:] or IN_CONTAINERS:
            print(build(directory, default_cache_dir(os.environ)))  # noqa: T201
    except NotBuiltError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
