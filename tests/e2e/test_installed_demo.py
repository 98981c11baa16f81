"""The demo from the wheel, in an environment that has nothing else. Needs the network for what uv has not cached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.harness import MARK, leftovers
from tests.releasing.building import find_uv

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900.0
OURS = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
"""Variables by which an environment could find this checkout."""


def succeed(*command: str | Path, cwd: Path, **environ: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name not in OURS}
    ended = subprocess.run(
        command, cwd=cwd, env=variables | environ, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.full  # each time: the demo of the checkout in test_demo.py, and the wheel in test_release.py
@pytest.mark.spark
@pytest.mark.timeout(4 * TIMEOUT_S)
def test_the_demo_runs_from_the_wheel_in_an_empty_environment(tmp_path: Path) -> None:
    uv, venv, elsewhere = find_uv(), tmp_path / "venv", tmp_path / "elsewhere"
    elsewhere.mkdir()
    succeed(uv, "build", "--quiet", "--wheel", "--out-dir", tmp_path / "dist", ROOT, cwd=elsewhere)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    export = ("export", "--quiet", "--frozen", "--no-default-groups", "--extra", "demo", "--no-emit-project")
    locked = tmp_path / "locked.txt"
    succeed(uv, *export, "--no-hashes", "--output-file", locked, cwd=ROOT)
    succeed(uv, "venv", "--quiet", "--python", sys.executable, venv, cwd=elsewhere)
    install = ("pip", "install", "--quiet", "--system-certs", "--python", venv / "bin/python", "--constraints", locked)
    succeed(uv, *install, f"{wheel}[demo]", cwd=elsewhere)
    place = succeed(venv / "bin/python", "-c", "import iscp; print(iscp.__file__)", cwd=elsewhere)
    assert place.startswith(str(venv))

    mark = uuid4().hex
    said = succeed(venv / "bin/iscp", "demo", "--days", "2", "--json", cwd=elsewhere, **{MARK: mark})
    result = json.loads(said.splitlines()[-1])
    assert result["verified"] is True
    assert all(job["equal"] for job in result["jobs"])
    assert leftovers(mark) == []
    assert list(elsewhere.iterdir()) == []
