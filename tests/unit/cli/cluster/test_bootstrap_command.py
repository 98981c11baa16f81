"""`iscp-admin token bootstrap` with a real etcd: what it makes is a token, wherever the command stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from iscp.adapters.etcd.client import EtcdClient
from iscp.adapters.etcd.keys import Keys
from iscp.adapters.etcd.server import EtcdServer
from iscp.adapters.etcd.tokens.token_store import EtcdTokens
from iscp.adapters.etcd.values import EtcdSettings
from iscp.adapters.system.clock import SystemClock
from iscp.bootstrap.configuration.settings import load_settings
from iscp.cli.iscp import iscp
from iscp.cli.iscp_admin import cli
from iscp.core.access.access_token import id_of
from iscp.core.values.access_roles import Role

CONFIG = """
node_id = "n-1"
[log]
uri = "/lake/iscp_log"
[etcd]
endpoints = ["{endpoint}"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    server = EtcdServer.start(tmp_path / "etcd", clock=SystemClock())
    file = tmp_path / "node.toml"
    file.write_text(CONFIG.format(endpoint=server.endpoint))
    yield file
    server.stop()


def test_the_first_token_is_made_in_the_new_place_and_in_the_old_one(config: Path) -> None:
    run = CliRunner()
    made = run.invoke(cli, ["token", "bootstrap", "--config", str(config), "--ttl", "1h", "-o", "json"])
    assert (made.exit_code, made.stderr) == (0, "")
    row = json.loads(made.stdout)
    assert (row["id"], row["role"], row["state"]) == (id_of(row["token"]), "admin", "ready")
    before = run.invoke(iscp, ["token", "bootstrap", "--config", str(config)])
    assert before.exit_code == 0
    assert "is admin of" in before.stderr
    settings = load_settings(config, {})
    with EtcdClient(EtcdSettings.of(settings.etcd), SystemClock()) as etcd:
        stored = EtcdTokens(etcd, Keys(settings.etcd_prefix), settings.security.cluster_account).records()
    assert {each.token_id for each in stored} == {row["id"], id_of(before.stdout.strip())}
    assert {each.role for each in stored} == {Role.ADMIN}


def test_the_old_place_is_shown_no_more() -> None:
    assert "bootstrap" in CliRunner().invoke(cli, ["token", "--help"]).stdout
    assert "token" not in CliRunner().invoke(iscp, ["--help"]).stdout


def test_without_a_configuration_it_is_said_what_to_give() -> None:
    told = CliRunner().invoke(cli, ["token", "bootstrap"])
    assert (told.exit_code, told.stdout) == (1, "")
    assert "node_id is missing" in told.stderr
    assert "\n  field: --config\n  remedy: Give the configuration of a node by --config" in told.stderr
