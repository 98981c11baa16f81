"""The image's size, and from its start to a node that serves and a first job: `python -m benchmarks.image --image TAG`.

The container runs as Kubernetes runs it: root read-only, an ordinary user, no capabilities; and whatever it would fetch
fails, as all ways out lead to a closed port. Needs podman or docker, and an etcd as `iscp up` does. Each run is the
image's first on a new job log; the job is on a table of 1,000 rows. After it SIGTERM has to end the node in order.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.progress import report_progress
from iscp.cli.node.local_cluster import healthy
from iscp.client.admin_client import Client
from iscp.etcd.server import EtcdServer
from iscp.system.http_exchange import free_port
from iscp.system.threads import SystemClock

ROWS = 1_000
RUNS = 3
READY_MAX_S = 600.0
STOP_MAX_S = 60
CLOSED = "http://127.0.0.1:9"


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that runs containers, and options of this machine's for it."""

    program: str
    options: Sequence[str]

    def call(self, *words: str) -> str:
        done = subprocess.run([self.program, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"{self.program} {words[0]}: {done.stderr.strip()}")
        return done.stdout.strip()

    def size_mb(self, image: str) -> int:
        return round(int(self.call("image", "inspect", "--format", "{{.Size}}", image)) / 1e6)

    def runs(self, name: str) -> bool:
        return bool(self.call("ps", "--quiet", "--filter", f"id={name}"))

    @contextmanager
    def node(self, image: str, lake: Path, settings: dict[str, str]) -> Iterator[str]:
        """A container's name; it is removed in the end."""
        variables = [word for name, value in settings.items() for word in ("--env", f"{name}={value}")]
        hardened = "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=host"
        mounts = "--tmpfs=/tmp:exec", f"--volume={lake}:{lake}"  # Java loads libraries from there
        name = self.call("run", "--detach", *hardened, *mounts, *self.options, *variables, image, "iscp", "node")
        try:
            yield name
        finally:
            self.call("rm", "--force", name)


@dataclass(frozen=True, slots=True)
class Run:
    ready_s: float
    first_iteration_s: float
    stop_s: float


def measure(engine: Engine, image: str, root: Path) -> Run:
    lake = root / "lake"
    (lake / "log").mkdir(parents=True)
    for each in (root, lake, lake / "log"):
        each.chmod(0o777)  # the image's user is none of this machine
    source = str(lake / "source")
    rows = pa.table({"id": list(range(ROWS)), "text": ["x"] * ROWS})
    write_deltalake(source, rows, configuration={"delta.enableChangeDataFeed": "true"})
    etcd, address = EtcdServer.start(root / "etcd", clock=SystemClock()), f"127.0.0.1:{free_port()}"
    settings = {
        "ISCP_NODE_ID": "image-0",
        "ISCP_LISTEN": address,
        "ISCP_DATA_DIR": "/tmp/iscp",
        "ISCP_LOG__URI": str(lake / "log"),
        "ISCP_ETCD__ENDPOINTS": etcd.endpoint,
        "ISCP_STORAGE__S3__REGION": "us-east-1",  # so that the jars for S3 are needed too
        "http_proxy": CLOSED,
        "https_proxy": CLOSED,
        "no_proxy": "127.0.0.1,localhost",
    }
    begin_s = time.perf_counter()
    try:
        with engine.node(image, lake, settings) as name:
            while not healthy(address):
                if time.perf_counter() - begin_s > READY_MAX_S or not engine.runs(name):
                    raise click.ClickException(f"the node does not serve:\n{engine.call('logs', '--tail', '20', name)}")
                time.sleep(0.05)
            ready_s = time.perf_counter() - begin_s
            with Client(address) as client:
                client.register(source, "copy", target=str(lake / "target"), key=["id"])
                client.wait(source, "copy", timeout_s=READY_MAX_S)
            first_s, stopping_s = time.perf_counter() - begin_s, time.perf_counter()
            engine.call("stop", "--time", str(STOP_MAX_S), name)
            status = engine.call("inspect", "--format", "{{.State.ExitCode}}", name)
            if status != "0":
                raise click.ClickException(f"SIGTERM ended the node with status {status}")
            return Run(ready_s, first_s, time.perf_counter() - stopping_s)
    finally:
        etcd.stop()


@click.command()
@click.option("--image", required=True, help="As scripts/image has tagged it.")
@click.option("--runs", type=click.IntRange(min=1), default=RUNS, show_default=True)
@click.option("--option", "options", multiple=True, help="For the engine's run, as --option=--cgroups=disabled.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def main(image: str, runs: int, options: tuple[str, ...], as_json: bool) -> None:
    """Measure how large the image is, and how long its start takes."""
    program = next((each for each in ("podman", "docker") if shutil.which(each)), None)
    if program is None:
        raise click.ClickException("needs podman or docker")
    engine, measured = Engine(program, options), []
    for number in range(1, runs + 1):
        with tempfile.TemporaryDirectory(prefix="iscp-image-") as root:
            run = measure(engine, image, Path(root))
        measured.append(run)
        report_progress("a start", run=number, **asdict(run))
    result = {
        "benchmark": "image",
        "runs": runs,
        "cpus": os.cpu_count(),
        "size_mb": engine.size_mb(image),
        "ready_s": round(statistics.median(run.ready_s for run in measured), 2),
        "first_iteration_s": round(statistics.median(run.first_iteration_s for run in measured), 2),
        "stop_s": round(statistics.median(run.stop_s for run in measured), 2),
    }
    click.echo(json.dumps(result) if as_json else "\n".join(f"{name}: {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
