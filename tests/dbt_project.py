"""The dbt project in `tests/data/dbt`, compiled by the real dbt-core in a venv of its own.

`python -m tests.dbt_project` writes `tests/data/dbt/manifest.json` again, with which the tests run that need no dbt.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.environments import environment

PROJECT = Path(__file__).parent / "data" / "dbt"
GOLDEN = PROJECT / "manifest.json"
COMPILE_MAX_S = 300.0
"""Seconds that one `dbt compile` may take."""

DBT = "from dbt.cli.main import cli; cli()"
_LEFT_OUT = ("macros", "docs")
"""What a manifest has of dbt's own packages: nearly all of its size, and nothing of the project."""

_OF_ONE_RUN = ("generated_at", "invocation_id", "invocation_started_at", "run_started_at", "user_id")


def compiled(project: Path, directory: Path) -> Path:
    """Return the manifest that `dbt compile` makes of a copy of the project in `directory`.

    Raises CalledProcessError with what dbt says.
    """
    python = environment("dbt") / "python"
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
