"""Limits of open files are the operating system's: they are set for processes of their own, and tried there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iscp.adapters.system.open_files import OPEN_FILES_BESIDE_NODES, files_needed, refuse_too_few_files
from iscp.core.values.errors import ConfigurationError
from iscp.core.values.members import NODES_MAX

ROOT = Path(__file__).parents[4]

LIMIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
"""
RAISE = "from iscp.adapters.system.open_files import raise_open_files_limit; print(raise_open_files_limit())"
START = """
from dataclasses import replace

from iscp.adapters.system.clock import SystemClock
from iscp.bootstrap.preflight import refuse_misfit
from iscp.core.settings.config import JobLogConfig, NodeConfig
from iscp.core.values.errors import ConfigurationError
from tests.fakes.etcd import FakeEtcd, FakeMembership
from tests.fakes.prompt_nodes import node_records

etcd = FakeEtcd(SystemClock())
records = node_records(100)
for record in records:
    FakeMembership(etcd).register(record)
try:
    config = NodeConfig(node_id="n-0", log=JobLogConfig(uri="missing"), listen="127.0.0.1:1")
    refuse_misfit(config, replace(records[0], address="127.0.0.1:1"), FakeMembership(etcd), None)
except ConfigurationError as error:
    print(error.field, error)
"""


def run_limited(code: str, soft: int, hard: int) -> str:
    """What it prints, in a process with these limits."""
    command = [sys.executable, "-c", LIMIT.format(soft=soft, hard=hard) + code]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert run_limited(RAISE, 128, 2_000).strip() == "2000"
    assert run_limited(RAISE, 300, 300).strip() == "300"


def test_a_node_that_could_not_lead_its_cluster_is_refused_before_anybody_knows_it() -> None:
    said = run_limited(START, 600, 600)
    assert "ulimit -n" in said
    assert "may have 600 files open" in said
    assert "owner of 100 nodes needs 612" in said
    assert "ulimit" not in run_limited(START, 612, 612)


@pytest.mark.parametrize("nodes", [1, 100, NODES_MAX])
def test_each_node_takes_a_file(nodes: int) -> None:
    refuse_too_few_files(files_needed(nodes), nodes)
    with pytest.raises(ConfigurationError, match=f"{nodes} nodes needs {nodes + OPEN_FILES_BESIDE_NODES}"):
        refuse_too_few_files(files_needed(nodes) - 1, nodes)
