"""The dbt project in `tests/data/dbt`, compiled by the real dbt-core in a venv of its own.

`python -m tests.dbt_project` writes `tests/data/dbt/manifest.json` again, with which the tests run that need no dbt.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from iscp.adapters.delta.spark.jvm_launch import default_cache_dir

PROJECT = Path(__file__).parent / "data" / "dbt"
GOLDEN = PROJECT / "manifest.json"
REQUIREMENTS = PROJECT / "requirements.txt"
INSTALL_MAX_S, COMPILE_MAX_S = 600.0, 300.0
"""Seconds that the installation of dbt, and one `dbt compile`, may take."""

DBT = "from dbt.cli.main import cli; cli()"
_LEFT_OUT = ("macros", "docs")
"""What a manifest has of dbt's own packages: nearly all of its size, and nothing of the project."""

_OF_ONE_RUN = ("generated_at", "invocation_id", "invocation_started_at", "run_started_at", "user_id")


def compiled(project: Path, directory: Path) -> Path:
    """Return the manifest that `dbt compile` makes of a copy of the project in `directory`.

    Raises CalledProcessError with what pip or dbt says.
    """
    python = _python()
    shutil.copytree(project, directory, ignore=shutil.ignore_patterns("manifest.json"), dirs_exist_ok=True)
    environ = os.environ | {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DBT_PROFILES_DIR": str(directory)}
    _run([str(python), "-c", DBT, "compile", "--no-version-check"], COMPILE_MAX_S, directory, environ)
    return directory / "target" / "manifest.json"


def lasting(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what a manifest says of the project, whenever and wherever it is compiled."""
    found = {key: {} if key in _LEFT_OUT else value for key, value in manifest.items()}
    found["metadata"] = {key: value for key, value in found["metadata"].items() if key not in _OF_ONE_RUN}
    for node in found["nodes"].values():
        node.pop("created_at", None)
    for source in found["sources"].values():
        source.pop("created_at", None)
    return found


def _python() -> Path:
    """Return the Python of a venv with what is required, which is made once for each content of REQUIREMENTS."""
    mark = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:16]
    venv = default_cache_dir(os.environ) / f"dbt-{mark}"
    python, done = venv / "bin" / "python", venv / ".installed"
    if not done.exists():
        shutil.rmtree(venv, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(venv)], INSTALL_MAX_S)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "-r", str(REQUIREMENTS)], INSTALL_MAX_S)
        done.touch()
    return python


def _run(
    command: list[str], timeout_s: float, directory: Path | None = None, environ: dict[str, str] | None = None
) -> None:
    done = subprocess.run(
        command, cwd=directory, env=environ, capture_output=True, text=True, check=False, timeout=timeout_s
    )
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr + done.stdout)


def main() -> None:
    with TemporaryDirectory() as directory:
        manifest = json.loads(compiled(PROJECT, Path(directory)).read_text())
    GOLDEN.write_text(json.dumps(lasting(manifest), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
