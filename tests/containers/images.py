"""Images of one static program each, made without a registry and without a build; and how their ports are reached."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import docker
from docker.errors import ImageNotFound
from testcontainers.core.container import DockerContainer

REPOSITORY = "localhost/iscp-tests"


def make_image(engine: docker.DockerClient, program: Path) -> str:
    """Its name, which has the sum of what is in it: an engine that has it is given nothing."""
    content = program.read_bytes()
    tag = f"{program.name}-{hashlib.sha256(content).hexdigest()[:12]}"
    name = f"{REPOSITORY}:{tag}"
    try:
        engine.images.get(name)
    except ImageNotFound:
        entry = f"ENTRYPOINT {json.dumps([f'/{program.name}'])}"
        engine.api.import_image_from_data(_root(program.name, content), repository=REPOSITORY, tag=tag, changes=[entry])
    return name


def publish(container: DockerContainer, port: int, at: int) -> None:
    """Its port at that one of the loopback interface: `with_bind_ports` would have all of the network reach it."""
    container.ports[f"{port}/tcp"] = ("127.0.0.1", at)  # type: ignore[assignment]


def _root(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for directory, mode in (("tmp", 0o1777), ("data", 0o777)):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        file = tarfile.TarInfo(name)
        file.mode, file.size = 0o755, len(content)
        archive.addfile(file, io.BytesIO(content))
    return packed.getvalue()
