"""`iscp-admin backup` on the directory of an `iscp up`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iscp.cli.iscp_admin import PROGRAM, cli
from iscp.cli.node.local_cluster import Layout, hold_directory
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.model.job.job_row import LogEntry
from iscp.model.values.untrusted_values import EXTRA_MODULES
from iscp.system.threads import SystemClock
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.log_program import job


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["backup", *arguments], prog_name=PROGRAM)


def opened(layout: Layout) -> DeltaJobLog:
    return DeltaJobLog(str(layout.job_log), SystemClock(), ScriptedFailpoints())


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "data")
    made.create()
    joblog = opened(made)
    joblog.claim_term()
    joblog.append([LogEntry(job(1)), LogEntry(job(2))])
    return made


def test_the_log_of_a_data_directory_is_copied_and_restored(layout: Layout, tmp_path: Path) -> None:
    data, to = str(layout.root), str(tmp_path / "backup")
    with hold_directory(layout):  # as an `iscp up` that runs
        made = run("create", to, "--data", data)
        assert (made.exit_code, made.stdout) == (0, f"{to} holds the job log at version 2, with 2 jobs\n")
        (layout.job_log / "iscp_log").rename(tmp_path / "lost")
        refused = run("restore", to, "--data", data)
        assert (refused.exit_code, "is in use by process" in refused.stderr) == (1, True)
    assert not (layout.job_log / "iscp_log").exists()
    restored = run("restore", to, "--data", data, "--pause", "-o", "json")
    assert restored.exit_code == 0, restored.output
    said = json.loads(restored.stdout)
    assert said["id"] == to
    assert (said["version"], said["jobs"], said["reached"]) == (2, 2, -1)
    joblog = opened(layout)
    joblog.claim_term()
    assert joblog.version == said["restored_version"] + 1
    assert [row.paused for row in joblog.load()] == [True, True]


def test_where_the_log_is_has_to_be_said_once(layout: Layout, tmp_path: Path) -> None:
    (file := tmp_path / "node.toml").touch()
    to = str(tmp_path / "backup")
    for command in ("create", "verify", "restore"):
        for options in ([], ["--data", str(layout.root), "--config", str(file)]):
            refused = run(command, to, *options)
            assert (refused.exit_code, "give either --data or --config" in refused.stderr) == (2, True)
        refused = run(command, to, "--data", str(tmp_path))
        assert (refused.exit_code, "  field: --data" in refused.stderr) == (1, True)
    assert not Path(to).exists()


def test_without_the_extra_it_says_what_to_install() -> None:
    code = (
        f"import sys\nfor name in {EXTRA_MODULES}: sys.modules[name] = None\n"
        "from iscp.cli.iscp_admin import main\nmain(['backup', 'create', '/backup', '--config', '/node.toml'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(
        r"error: the Python module [\w.]+ is not installed\. Run: pip install 'iscp-delta\[node\]'\n", ended.stderr
    )
