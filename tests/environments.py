"""Environments of other tools, each made once for a machine: their packages do not go together with each other's."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from iscp.spark.jvm_launch import default_cache_dir
from tests.releasing.building import find_uv

TOOLS: Mapping[str, tuple[str, ...]] = {
    "airflow": ("apache-airflow==3.3.2", "apache-airflow-providers-standard==1.21.0"),
    "dagster": ("dagster==1.13.29",),
    "dbt": ("dbt-core==1.11.16", "dbt-duckdb==1.11.1", "deltalake==1.6.6", "pyarrow>=21"),
    "notebook": ("nbclient==0.11.0", "ipykernel==7.4.0"),
}
"""What is installed for each. dbt-core 1.12 needs a parser that only its own site has."""

INSTALL_TIMEOUT_S = 600.0


def environment(tool: str) -> Path:
    """The directory of the tool's programs."""
    wanted = "\n".join((sys.version, *TOOLS[tool]))
    home = default_cache_dir(os.environ) / f"tool-{tool}-{hashlib.sha256(wanted.encode()).hexdigest()[:16]}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of tests that start together one installs
        if not (home / "complete").exists():
            _uv("venv", "--clear", "--python", sys.executable, str(home))
            _uv("pip", "install", "--python", str(home / "bin/python"), *TOOLS[tool])
            (home / "complete").touch()
    return home / "bin"


def _uv(*words: str) -> None:
    command = [str(find_uv()), *words, "--quiet"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    assert ended.returncode == 0, ended.stderr
