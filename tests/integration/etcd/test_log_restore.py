"""`iscp-admin backup` beside a real etcd: while a node runs a restore is refused, and what is given up is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from iscp.app.settings import to_toml
from iscp.cli.iscp_admin import PROGRAM, cli
from iscp.delta.joblog.delta_job_log import DeltaJobLog
from iscp.etcd.client import EtcdClient
from iscp.etcd.keys import Keys, Put, encoded
from iscp.etcd.server import EtcdServer
from iscp.model.job.job_row import LogEntry
from iscp.model.settings.config import EtcdConfig, JobLogConfig, NodeConfig
from iscp.model.values.ids import NodeRecord
from iscp.system.threads import SystemClock
from tests.fakes.guards import ScriptedFailpoints
from tests.fakes.log_program import job


@pytest.fixture
def config(shared_server: EtcdServer, prefix: str, tmp_path: Path) -> NodeConfig:
    (tmp_path / "joblog").mkdir()
    etcd = EtcdConfig(endpoints=(shared_server.endpoint,), prefix=prefix)
    made = NodeConfig(node_id="n1", etcd=etcd, log=JobLogConfig(uri=str(tmp_path / "joblog")))
    (tmp_path / "node.toml").write_text(to_toml(made))
    return made


@pytest.fixture
def run(config: NodeConfig, tmp_path: Path) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        file = str(tmp_path / "node.toml")
        return CliRunner().invoke(cli, ["backup", *arguments, "--config", file], prog_name=PROGRAM)

    return run


def opened(config: NodeConfig) -> DeltaJobLog:
    return DeltaJobLog(config.log.uri, SystemClock(), ScriptedFailpoints(), cluster=config.cluster)


def test_a_restore_is_refused_while_a_node_is_registered_or_leads(
    config: NodeConfig, run: Callable[..., Result], client: EtcdClient, tmp_path: Path
) -> None:
    keys = Keys(config.etcd_prefix)
    joblog = opened(config)
    joblog.claim_term()
    joblog.append([LogEntry(job(1))])
    to = str(tmp_path / "backup")
    made = run("create", to, "-o", "json")
    assert made.exit_code == 0, made.output
    said = json.loads(made.stdout)
    assert (said["id"], said["version"], said["jobs"], said["rows"]) == (to, joblog.version, 1, 1)
    joblog.append([LogEntry(job(2))])
    client.txn((), (Put(keys.job_log, str(joblog.version).encode()),))
    log = tmp_path / "joblog" / "iscp_log"
    shutil.rmtree(log)

    for key, value, why in (
        (keys.node("n1"), encoded(NodeRecord("n1", 1, "127.0.0.1:1")), "n1 is registered"),
        (keys.candidate(1), b"n1", "n1 leads the cluster"),
    ):
        client.put(key, value)
        refused = run("restore", to)
        assert (refused.exit_code, why in refused.stderr) == (1, True), refused.output
        assert "Stop all nodes" in refused.stderr
        assert not log.exists()
        client.delete(key)

    restored = run("restore", to)
    assert restored.exit_code == 0, restored.output
    assert "has 1 jobs again" in restored.stdout
    assert f"given up: what was acknowledged after version {said['version']}, up to {joblog.version}" in restored.stdout
    again = DeltaJobLog(
        config.log.uri, SystemClock(), ScriptedFailpoints(), cluster=config.cluster, reached=lambda: joblog.version
    )
    again.claim_term()
    assert [row.key.job_name for row in again.load()] == ["j1"]


def test_a_restore_is_refused_where_nobody_can_say_whether_a_node_runs(
    config: NodeConfig, run: Callable[..., Result], tmp_path: Path
) -> None:
    opened(config).claim_term()
    assert run("create", str(tmp_path / "backup")).exit_code == 0
    shutil.rmtree(tmp_path / "joblog" / "iscp_log")
    nobody = EtcdConfig(endpoints=("127.0.0.1:1",), request_timeout_s=0.5)
    (tmp_path / "node.toml").write_text(to_toml(NodeConfig(node_id="n1", etcd=nobody, log=config.log)))
    refused = run("restore", str(tmp_path / "backup"))
    assert refused.exit_code == 1
    assert "etcd does not say whether a node runs" in refused.stderr
    assert not (tmp_path / "joblog" / "iscp_log").exists()


def test_another_clusters_backup_is_refused(config: NodeConfig, run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    DeltaJobLog(str(tmp_path / "other"), SystemClock(), ScriptedFailpoints(), cluster="other").claim_term()
    file = tmp_path / "other.toml"
    file.write_text(to_toml(NodeConfig(node_id="n1", cluster="other", log=JobLogConfig(uri=str(tmp_path / "other")))))
    to = str(tmp_path / "backup")
    made = CliRunner().invoke(cli, ["backup", "create", to, "--config", str(file)], prog_name=PROGRAM)
    assert made.exit_code == 0, made.output
    refused = run("restore", to)
    assert (refused.exit_code, "of the cluster 'other'" in refused.stderr) == (1, True)
    assert "  field: cluster" in refused.stderr


def test_a_whole_backup_is_shown_and_a_damaged_one_named(
    config: NodeConfig, run: Callable[..., Result], tmp_path: Path
) -> None:
    opened(config).claim_term()
    to = tmp_path / "backup"
    assert run("create", str(to)).exit_code == 0
    assert "is whole: the job log at version" in run("verify", str(to)).stdout
    next(to.glob("*.parquet")).write_bytes(b"")
    damaged = run("verify", str(to))
    assert (damaged.exit_code, "the backup is damaged" in damaged.stderr) == (1, True)
