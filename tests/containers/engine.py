"""Where containers run: docker's or podman's socket of this machine. `python -m tests.containers.engine` finds it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import docker
from docker.errors import DockerException
from testcontainers.core.config import testcontainers_config

PING_WAIT_S = 5

HINT = "scripts/test-containers starts a dockerd of its own"


def sockets(environ: Mapping[str, str], home: Path) -> list[str]:
    """Where one may listen, the likeliest first; the one that is named and no other, where one is."""
    if named := environ.get("DOCKER_HOST"):
        return [named]
    places = [Path("/var/run/docker.sock"), Path("/run/podman/podman.sock"), home / ".docker/run/docker.sock"]
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        places += [Path(runtime) / name for name in ("docker.sock", "podman/podman.sock")]
    return [f"unix://{each}" for each in places]


def answers(address: str) -> bool:
    """Whether somebody speaks docker's protocol there."""
    try:
        client = docker.DockerClient(base_url=address, timeout=PING_WAIT_S)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except (DockerException, OSError):
        return False


def find_engine(
    environ: Mapping[str, str], home: Path, answering: Callable[[str], bool] = answers
) -> tuple[str | None, str]:
    """Its address; or None, and why there is none.

    Containers' ports are reached by the loopback interface, so one on another machine is none.
    """
    tried = sockets(environ, home)
    if far := [each for each in tried if not each.startswith("unix://")]:
        return None, f"DOCKER_HOST is {far[0]}: not a socket of this machine"
    for each in tried:
        if answering(each):
            return each, ""
    return None, f"no containers' socket answers ({', '.join(each.removeprefix('unix://') for each in tried)}); {HINT}"


def use_engine(address: str) -> docker.DockerClient:
    """For testcontainers too. Their reaper, which needs an image of a registry, is left out."""
    os.environ["DOCKER_HOST"] = address
    testcontainers_config.ryuk_disabled = True
    testcontainers_config.tc_host_override = "127.0.0.1"
    return docker.DockerClient(base_url=address)


def main() -> None:
    address, reason = find_engine(os.environ, Path.home())
    if address is None:
        sys.exit(f"containers: {reason}")


if __name__ == "__main__":
    main()
