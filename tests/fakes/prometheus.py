"""A real Prometheus, of Debian's package: from the PATH, or unpacked into the cache of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from iscp.spark.session import default_cache_dir
from iscp.system.child_process import end, spawn
from iscp.system.http_exchange import free_port

FETCH_S = 300.0
STOP_S = 20.0


@cache
def program(name: str) -> Path | None:
    """`prometheus` or `promtool`; None where neither the machine nor Debian has it."""
    if found := shutil.which(name):
        return Path(found)
    folder = default_cache_dir(os.environ) / "prometheus"
    path = folder / "usr/bin" / name
    if not path.exists() and shutil.which("apt-get") and shutil.which("dpkg"):
        folder.mkdir(parents=True, exist_ok=True)
        command = "apt-get download prometheus && dpkg -x prometheus_*.deb ."
        subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, timeout=FETCH_S, check=False)
    return path if path.exists() else None


class Prometheus:
    """Scrapes `targets` every second, and evaluates the rules of a file."""

    def __init__(self, executable: Path, root: Path, targets: Sequence[str], rules: Path) -> None:
        root.mkdir()
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(rules)],
            "scrape_configs": [{"job_name": "iscp", "static_configs": [{"targets": [*targets]}]}],
        }
        (root / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.address = f"127.0.0.1:{free_port()}"
        command = [
            str(executable),
            f"--config.file={root / 'prometheus.yml'}",
            f"--storage.tsdb.path={root / 'data'}",
            f"--web.listen-address={self.address}",
        ]
        self._child = spawn(command, root / "prometheus.log", dict(os.environ))

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API. Raises OSError."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}?{query}", timeout=10.0) as answer:
            document = json.loads(answer.read())
        assert document["status"] == "success"
        return document["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def stop(self) -> None:
        end(self._child, STOP_S)
